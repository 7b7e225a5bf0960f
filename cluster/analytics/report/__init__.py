"""One HTML page with plots of the job's output: read with pyarrow, drawn by uPlot in the browser, one file."""
