"""Reference pages, printed from the tables that the product itself runs by."""
