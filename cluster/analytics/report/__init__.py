"""One HTML page with plots of the job's output: read with pyarrow, drawn as SVG, one file."""
