"""The console with Django's admin, as ``manage.py up`` serves them.

An existing project includes ``console.urls`` beside its own admin instead.
"""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("demo/", include("console.demo.switch")),
    path("", include("console.urls")),
]

handler403 = "console.views.errors.forbidden"
handler404 = "console.views.errors.not_found"
handler500 = "console.views.errors.server_error"
