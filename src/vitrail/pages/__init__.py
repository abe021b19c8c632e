"""Pages: templates, one stylesheet, one small script, charts and thumbnails; plain values in, HTML
out."""
