"""What people type: read, checked, and refused with the value and what to do."""
