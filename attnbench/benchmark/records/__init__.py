"""Records: what one measurement gave, and the files that keep them."""
