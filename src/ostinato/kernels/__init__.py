"""Pure tensor operators, registered with torch.library; each lives beside its reference."""
