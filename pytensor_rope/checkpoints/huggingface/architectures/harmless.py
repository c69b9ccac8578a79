"""Keys of a ``config.json`` that change nothing of what a causal language model computes."""

# Who wrote the file, and where it lies.
_ORIGIN = {"_commit_hash", "_name_or_path", "architectures", "auto_map", "custom_pipelines"}
_ORIGIN |= {"finetuning_task", "model_type", "name_or_path", "tokenizer_class", "transformers.js_config"}
_ORIGIN |= {"transformers_version", "unsloth_fixed", "unsloth_version"}

# In what numbers the weights are stored, which the weights say themselves.
_STORAGE = {"dtype", "torch_dtype", "use_bfloat16"}

# Ids that the tokenizer or whoever generates text looks up.
_TOKENS = {"bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id"}
_TOKENS |= {"unk_token_id", "model_max_length", "tokenizer_model_max_length", "tokenizer_padding_side"}

# They act in training alone.
_TRAINING = {"attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "classifier_dropout"}
_TRAINING |= {"embd_pdrop", "embedding_dropout", "gradient_checkpointing", "hidden_dropout"}
_TRAINING |= {"hidden_dropout_prob", "initializer_range", "loss_type", "neftune_noise_alpha", "resid_pdrop"}
_TRAINING |= {"residual_dropout"}

# How the same numbers are computed, or which of them are handed out. pretraining_tp splits matrices.
_EXECUTION = {"_attn_implementation", "_attn_implementation_autoset", "attn_implementation"}
_EXECUTION |= {"cache_implementation", "chunk_size_feed_forward", "is_decoder", "output_attentions"}
_EXECUTION |= {"keys_to_ignore_at_inference", "output_hidden_states", "pretraining_tp", "return_dict"}
_EXECUTION |= {"torchscript", "use_cache", "use_flash_attn"}

# How long a text may be, beside max_position_embeddings, which alone is held against positions.
_LENGTHS = {"max_seq_len", "max_sequence_length"}

# Heads for other tasks, whose weights would be refused.
_OTHER_TASKS = {"id2label", "label2id", "num_labels", "problem_type", "summary_activation"}
_OTHER_TASKS |= {"summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"}
_OTHER_TASKS |= {"task_specific_params"}

# How text is generated from the logits.
_GENERATION = {"bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping"}
_GENERATION |= {"encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id"}
_GENERATION |= {"forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size"}
_GENERATION |= {"num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "prefix"}
_GENERATION |= {"remove_invalid_values", "repetition_penalty", "return_dict_in_generate"}
_GENERATION |= {"suppress_tokens", "temperature", "top_k", "top_p", "typical_p"}

HARMLESS = _ORIGIN | _STORAGE | _TOKENS | _TRAINING | _EXECUTION | _LENGTHS | _OTHER_TASKS | _GENERATION

# Keys that any file may have, with the values that change nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
}
