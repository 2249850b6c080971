"""What a page says about a row: words and shapes, without SQL and without HTML where a template can do it."""
