"""What a picture is made of, and the pictures of a report, in SVG. Nothing here knows of the page."""
