"""One HTML page with plots of what the job has written: read with pyarrow, drawn as SVG, one file."""
