"""How large inputs are."""

BATCH, LENGTH, DECODER_LENGTH, FRAMES, SAMPLES = 2, 14, 9, 64, 1920
