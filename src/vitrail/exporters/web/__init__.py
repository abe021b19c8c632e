"""A page that runs the model in a browser: the graph, ONNX Runtime Web, and hand-written files."""
