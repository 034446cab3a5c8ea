"""Networks from images to features, their parts, and encoders as files."""
