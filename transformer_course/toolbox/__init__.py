"""What every chapter stands on: devices and seeds, figures, data, checkpoints, the training loop, exercises."""
# Written by `make export`; do not edit.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
