"""Runner v2: the Model Runner V2 design."""
