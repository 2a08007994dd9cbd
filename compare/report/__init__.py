"""A comparison as a page: blocks (what a page is made of), sections, and the files that are written of them."""
