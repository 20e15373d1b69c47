"""Tables in, checked rows out."""
