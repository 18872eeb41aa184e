"""FLUX 3 Action: video latents and an action chunk, denoised together."""
