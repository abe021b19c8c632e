"""Models as files for servers and phones, each compared with the model before it is kept."""
