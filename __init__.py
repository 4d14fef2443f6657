"""eqsat: a torch.compile backend whose optimisations are YAML rules."""

__version__ = "0.1.0"
