"""Networks from images to features, their parts, and files that hold encoders."""
