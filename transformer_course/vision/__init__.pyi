from .vit import PatchEmbedding as PatchEmbedding, ViT as ViT, ViTConfig as ViTConfig, patchify as patchify, resize_positions as resize_positions
from .vit_vs_cnn import SmallCNN as SmallCNN, attention_rollout as attention_rollout, receptive_field as receptive_field
