"""What a broker and its workers need so that no job is lost, checked before one starts."""
