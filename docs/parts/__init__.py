"""What our pages need of Sphinx beyond its own parts: equations without a network, our source, our pictures."""
