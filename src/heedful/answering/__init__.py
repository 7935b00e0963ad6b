"""Many inputs: answered in blocks, files in and files out, gone on with after a stop; the nearest of many texts."""
