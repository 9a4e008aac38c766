"""Settings of ``config.json`` that are handled in the same way for every family.

A setting is read by the family's reader, listed here, or listed in the family's `KnownSettings`; a model with any other
setting is refused, since the setting may change what the model computes.
"""

from __future__ import annotations

# The quantization method in config.json for layers that this package quantized to int8; other programs do not know it.
QUANTIZATION, INT8_METHOD = "quantization_config", "bothways-int8"

# Settings that change no hidden state, by the reason. `tests/parity/test_parity_settings.py` changes them all.
NEUTRAL: dict[str, tuple[str, ...]] = {
    "read beside the encoder: by heads, labels and tasks": (
        *("model_type", "architectures", "tie_word_embeddings", "id2label", "label2id", "num_labels", "problem_type"),
        *("head_pooling", "head_start_token_id", "head_separator_token_id"),
    ),
    "where the model comes from": (
        *("transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "name", "language", "license"),
        *("finetuning_task", "task_specific_params", "_num_labels", "n_labels"),
    ),
    "the tokenizer, which has files of its own": (
        *("tokenizer_class", "prefix", "model_max_length", "max_seq_length", "do_lower_case", "padding_idx"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"),
        *("unk_token_id", "decoder_start_token_id", "eos_token_ids"),
    ),
    "how a program computes, not what": (
        *("torch_dtype", "dtype", "use_bfloat16", "torchscript", "xla_device", "use_cache", "gradient_checkpointing"),
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset"),
        *("_attn_implementation_internal", "experts_implementation", "_experts_implementation"),
        *("_experts_implementation_internal", "use_flash_attn"),
        *("allow_global_per_layer_attribute_access", "serialize_explicit_per_layer_config"),
    ),
    "outputs that a call returns": (
        *("output_attentions", "output_hidden_states", "output_past", "return_dict"),
        "tie_last_hidden_states",
    ),
    "losses and weights of training in other programs": ("tf_legacy_loss", "tie_weights_", "tie_encoder_decoder"),
    # Both are applied to logits by programs around the model; rankings stay the same.
    "how programs present scores": (
        *("sentence_transformers", "sbert_ce_default_activation_function", "custom_pipelines"),
    ),
    "heads of other families, in files of early transformers": (
        *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "summary_first_dropout"),
        *("summary_proj_to_labels", "cross_attention_hidden_size"),
    ),
    "dropout rates that the family does not have; dropout changes no prediction": (
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout"),
        *("hidden_dropout", "embedding_dropout", "mlp_dropout", "fc_dropout", "activation_dropout"),
        *("classifier_dropout_prob", "cls_dropout", "qa_dropout", "seq_classif_dropout", "pooler_dropout"),
    ),
    "generation of text": (
        *("assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens"),
        *("diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size"),
        *("encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty"),
        *("forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length"),
        *("no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups"),
        *("num_beams", "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty"),
        *("return_dict_in_generate", "suppress_tokens", "target_lookbehind", "temperature", "top_k", "top_p"),
        "typical_p",
    ),
    "sizes of a pooler that Google's files describe and no program reads": (
        *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
    ),
}
NEUTRAL_NAMES = frozenset(name for names in NEUTRAL.values() for name in names)

# Settings of unsupported features, with the values that leave the computation unchanged.
HARMLESS: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "chunk_size_feed_forward": (0, None),
    "pruned_heads": ({}, None),
    "directionality": ("bidi", None),
    "pooler_type": ("first_token_transform", None),
    "per_layer_config": ({}, None),
    "rope_scaling": (None,),
    # Empty collections, as the adapters library writes them.
    "adapters": (
        *({}, None, {"adapters": {}}, {"adapters": {}, "config_map": {}}),
        {"adapters": {}, "config_map": {}, "fusion_config_map": {}, "fusions": {}},
    ),
    QUANTIZATION: (None,),
}
