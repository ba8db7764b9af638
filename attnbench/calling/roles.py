"""The table of names: what arguments of constructors and of forwards mean, and keys of results.

Everything that goes by a name goes by this table. A name is looked up as it is, then without a
prefix that says whose it is (``lm_n_heads``, ``self_attn_mask``), then by how it ends.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

CONSTRUCTOR: Mapping[str, str] = {
    "width": "n_embd n_embed d_model d_model_size dim dims embed_dim embed_size emb_dim emb_size "
    "embedding_dim embedding_size hidden_size hidden_dim hidden hid_dim dim_model model_dim width "
    "n_state n_hidden num_hiddens d_in d_out dim_in dim_out in_dim out_dim in_channels "
    "out_channels channels num_channels n_channels input_dim output_dim input_size output_size "
    "in_features out_features num_features features units size d_embed d_hidden dim_embed "
    "planes in_planes inplanes n_feat nf c ch attn_out_dim feature_dim dimensions dimension",
    "query": "query_dim query_size q_dim q_size dim_q d_q decoder_dim decoder_size dec_dim "
    "dec_hid_dim dec_hidden_size decoder_hidden_size decoder_hidden_dim vector_dim tgt_dim "
    "query_vector_dim matrix_1_dim query_in_dim state_size rnn_dim",
    "key": "key_size key_dim k_size k_dim dim_k kdim encoder_dim encoder_size enc_dim "
    "enc_hid_dim encoder_hidden_size encoder_hidden_dim matrix_dim matrix_2_dim context_dim "
    "ctx_dim cross_attention_dim memory_dim memory_size source_dim src_dim kv_dim dim_context "
    "context_size annotation_dim annotation_size",
    "value": "value_size value_dim v_size v_dim dim_v vdim",
    "inner": "attention_dim attn_dim attention_size attn_size attention_hidden_size d_attn "
    "inner_dim qkv_dim d_attention att_dim hidden_att_dim align_dim",
    "heads": "n_head n_heads num_heads num_head num_attention_heads nhead heads h n_attn_heads "
    "head_num nb_heads num_attn_heads attention_heads attn_heads num_query_heads num_q_heads "
    "n_q_heads decoder_attention_heads encoder_attention_heads head_count q_heads",
    "kv_heads": "n_kv_heads num_kv_heads n_kv_head num_key_value_heads n_kv_groups num_kv_groups "
    "n_query_groups kv_heads n_local_heads num_kv n_kv num_k_heads num_v_heads",
    "head_dim": "head_dim d_k d_v dim_head head_size head_width d_head rope_n_elem attn_head_dim "
    "dim_heads dim_per_head head_features qk_dim d_kv kv_channels key_channels_per_head d_qk "
    "rotary_dim rotary_ndims rope_dim head_channels num_head_channels",
    "dropout": "dropout attn_dropout attn_pdrop resid_pdrop drop_rate proj_drop attn_drop "
    "attention_dropout dropout_p p dropout_rate resid_dropout attn_dropout_rate drop dropout_prob "
    "attention_probs_dropout_prob hidden_dropout_prob attention_dropout_prob drop_path p_drop "
    "residual_dropout attention_dropout_rate embd_pdrop dropout_ratio drop_prob",
    "length": "block_size context_length max_seq_len max_seq_length max_position_embeddings n_ctx "
    "max_len max_length seq_len seq_length sequence_len sequence_length max_positions "
    "n_positions max_target_positions context_len max_context_length ctx_len max_sequence_length "
    "max_target_len max_source_positions max_tokens rope_cache_len block max_position kv_len",
    "grid": "spacial_dim spatial_dim input_resolution resolution image_size img_size feat_size "
    "feature_size input_size_2d fmap_size",
    "window": "sliding_window window_size local_window sliding_window_size attention_window window "
    "win_size local_attn_window_size window_length",
    "batch": "max_batch_size batch_size max_batch bsz max_bsz",
    "feedforward": "dim_feedforward intermediate_size ffn_dim d_ff ff_dim mlp_dim n_inner d_inner "
    "hidden_features ff_size feedforward_dim ffn_hidden_size",
    "layer": "layer_idx layer_id layer_number layer_num layer_index block_idx layer depth_idx",
    "layers": "n_layer n_layers num_layers num_hidden_layers depth num_blocks max_blocks",
    "vocabulary": "vocab_size padded_vocab_size n_vocab num_embeddings vocabulary_size",
    "root": "temperature",
    "scale": "scale qk_scale softmax_scale scaling sm_scale",
    "epsilon": "norm_eps layer_norm_eps rms_norm_eps eps layer_norm_epsilon norm_epsilon epsilon",
    "base": "rope_theta rope_base theta rotary_base base rotary_emb_base rope_freq_base",
    "dtype": "dtype torch_dtype param_dtype",
    "device": "device",
    "method": "method attn_type attention_type score_function score_fn attn_model attention_mode "
    "align_method alignment attn_method",
    "bias": "bias qkv_bias attention_bias use_bias attn_bias kv_bias proj_bias lm_bias out_bias",
    "config": "config cfg args hparams opt opts params options conf model_args configuration "
    "hps hp model_config hyperparams settings",
    "activation": "activation hidden_act act_fn activation_function hidden_activation act",
    "norm": "norm_layer norm_class norm_cls norm_fn norm_func",
    "implementation": "_attn_implementation attn_implementation",
}
"""Roles of a constructor's arguments and of a config's fields, with the names they go by."""

METHODS = ("general", "dot", "concat", "additive", "mlp", "scaled_dot")
"""Values to try, in turn, for an argument that chooses how scores are computed."""

FORWARD: Mapping[str, str] = {
    "hidden": "x xs hidden_states hidden inp inps input inputs input_tensor src tgt input_ids_emb "
    "input_features hidden_state embeddings embedding emb feat feats features tokens_emb "
    "input_embeddings inputs_embeds z y seq sequence hs img image feature_map x_in "
    "normalized_hidden_states norm_hidden_states normed_hidden_states target",
    "query": "q query queries query_vec query_vector query_states querys xq q_proj decoder_hidden "
    "decoder_state dec_hidden decoder_hidden_state last_hidden decoder_output decoder_outputs "
    "s_t st_hat state hidden_t h_t dec_state s s_prev prev_hidden previous_hidden query_layer "
    "vector matrix_1 target_states rnn_output tgt_states current_state decoder_states input_q "
    "output",
    "key": "k key keys key_states xk key_layer k_proj key_vec input_k",
    "value": "v value values value_states xv value_layer v_proj input_v",
    "memory": "memory encoder_outputs encoder_output encoder_hidden_states enc_outputs enc_output "
    "enc_out encoder_out encoder_states enc_hidden enc_states source context ctx xa memory_bank "
    "annotations encoder_feature src_enc matrix matrix_2 source_states sources hs_src h_s "
    "encoder_hidden encoder_features key_value key_value_states cross_states enc memories kv "
    "source_hids enc_hiddens encoder_annotations features_src context_states image_features",
    "mask": "mask attn_mask attention_mask attn_bias self_attn_mask src_mask tgt_mask masks "
    "causal_mask attention_bias matrix_mask additive_mask slf_attn_mask bias local_mask "
    "sequence_mask dec_mask trg_mask attn_mask_type_tensor inf_mask x_mask rel_pos_bias "
    "position_bias relative_position_bias",
    "memory_mask": "memory_mask encoder_attention_mask src_mask_cross enc_mask encoder_mask "
    "context_mask cross_attn_mask source_mask ctx_mask dec_enc_attn_mask enc_masks "
    "encoder_masks cross_mask kv_mask mask_kv",
    "padding": "key_padding_mask padding_mask src_key_padding_mask self_attn_padding_mask "
    "encoder_padding_mask tgt_key_padding_mask input_mask pad_mask key_mask src_padding_mask "
    "padding pad",
    "memory_padding": "memory_key_padding_mask memory_padding_mask",
    "lengths": "valid_lens valid_len valid_length valid_lengths lengths lens seq_lens src_len "
    "src_lens src_lengths memory_lengths encoder_lens enc_lens source_lengths key_lengths "
    "input_lengths encoder_lengths seq_len_k source_lens kv_lens ilens hlens text_lengths",
    "positions": "position_ids positions pos_ids position_id token_positions",
    "slots": "input_pos cache_position kv_write_indices input_positions cache_positions",
    "start": "start_pos offset past_length position_offset start_position cache_offset seq_offset",
    "count": "input_pos_maxp1 total_len",
    "step": "t step time_step timestep",
    "rotary": "freqs_cis rope freqs freq_cis rotary_pos_emb position_embeddings cos_sin "
    "rotary_emb freqs_complex rope_cache rotary_embeddings pos_cis",
    "cos": "cos rope_cos cos_cached freqs_cos cos_freqs rotary_cos cos_emb",
    "sin": "sin rope_sin sin_cached freqs_sin sin_freqs rotary_sin sin_emb",
    "embedded_positions": "pos query_pos pos_emb pos_embed pos_embedding pos_embeddings pos_enc "
    "positional_encoding rel_pos rel_pos_emb relative_positions position_encoding key_pos "
    "position_embedding rel_embeddings posenc",
    "cache": "cache past_key_values past_key_value layer_past kv_cache past layer_cache "
    "incremental_state past_kv key_value_cache prev_kv",
    "key_cache": "key_cache k_cache",
    "value_cache": "value_cache v_cache",
    "previous_weights": "last_attn prev_attn previous_attn prev_att last_attention prev_weights "
    "attention_weights_cat alignment prev_attention previous_attention attn_prev last_align "
    "prev_alignment alpha_prev last_alpha",
    "coverage": "coverage cov coverage_vector",
    "processed_keys": "processed_memory proj_keys proj_key projected_keys processed_keys "
    "processed_inputs processed_encoder_outputs projected_memory proj_memory memory_proj",
    "causal": "is_causal causal use_causal_mask is_masked",
    "scale": "scale softmax_scale scaling sm_scale",
    "dropout": "dropout dropout_p attn_dropout",
    "gqa": "enable_gqa",
    "window": "window_size sliding_window",
    "softcap": "softcap logits_soft_cap",
    "key_scale": "k_scale k_descale",
    "value_scale": "v_scale v_descale",
    "head_offset": "head_offset",
    "sinks": "sinks s_aux sink",
    "alibi": "alibi_slopes",
    "return_weights": "need_weights return_weights return_attention_scores return_attn_probs "
    "output_attentions output_attn return_attn return_attention need_attn return_attns "
    "return_attention_weights output_attention return_attn_weights",
    "bounds": "cu_seqlens cu_seq_lens cu_seqlens_q",
    "grid": "feat_size hw spatial_shape grid_size",
    "rows": "height h",
    "columns": "width w",
    "use_cache": "use_cache return_cache use_kv_cache",
    "mask_value": "e eps neg_inf mask_value",
}
"""Roles of a forward's arguments, with the names they go by."""

SETTINGS: Mapping[str, str] = {
    "is_causal": "causal",
    "dropout_p": "dropout",
    "scale": "scale",
    "enable_gqa": "gqa",
    "window_size": "window",
    "softcap": "softcap",
    "sinks": "sinks",
    "alibi_slopes": "alibi",
    "k_scale": "key_scale",
    "v_scale": "value_scale",
    "head_offset": "head_offset",
    "return_weights": "return_weights",
}
"""What a mechanism may accept, and the role of a callee's argument for it."""

RESULT: Mapping[str, str] = {
    "output": "output out outputs context hidden_states last_hidden_state attn_output attn_out "
    "context_vector attention_output values sample x logits hidden context_layer",
    "weights": "weights attn_weights attention_weights attentions attn attention alpha alphas "
    "align_vectors attention_probs p_attn probs alignment scores_normalized",
    "scores": "scores energies energy logits_scores attention_scores attn_scores",
    "cache": "past_key_values past_key_value cache present kv_cache presents new_cache",
    "log_sums": "lse logsumexp softmax_lse",
}
"""Roles of a result's keys (a dict, a named tuple, the attributes of a module)."""

_OWNERS = re.compile(
    r"^(lm|vit|self|slf|attn|attention|text|vision|decoder|encoder|dec|enc|tgt|src|model|cross|"
    r"transformer|gpt|t5|llm|num|n|input)_(?=.)"
)
_ENDINGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "constructor": (
        (r"kernel(_?(size|width|length))?$", "kernel"),
        (r"(stride|dilation)s?$", "stride"),
        (r"filters$", "width"),
        (r"(kv|key_value).*(heads?|groups?)$", "kv_heads"),
        (r"head_?(dim|size|width)s?$|dim_per_head$|(dim|size|width)_(per_)?head$", "head_dim"),
        (r"heads?$", "heads"),
        (r"drop(out|_?path)?(_?(p|prob|probability|rate|ratio))?$|_pdrop$", "dropout"),
        (r"(ffn?|feed_?forward|mlp|inter(mediate)?).*(dim|size|hidden)$", "feedforward"),
        (
            r"(max|seq|context|ctx).*(len(gth)?|pos(itions?)?|embeddings|encodings?)$|_ctx$"
            r"|tokens(_per_\w+)?$",
            "length",
        ),
        (r"(^|_)(layer|block)_?(idx|id|index|num(ber)?)$", "layer"),
        (r"bias$", "bias"),
        (r"^(use|is|has|enable|with|do|add|return|scale|share|tie)_|norm$|^causal$", "flag"),
        (r"(dim|size|embe?d|width|channels|hidden|units|features|hiddens)$", "width"),
        (r"(config|cfg|hparams|args)$", "config"),
        (r"eps(ilon)?$", "epsilon"),
    ),
    "forward": (
        (r"head_masks?$", "head_factors"),
        (r"(memory|context|ctx|encoder|enc|source|cross|kv).*padding.*masks?$", "memory_padding"),
        (r"(memory|context|ctx|encoder|enc|source|cross|kv).*masks?$", "memory_mask"),
        (r"padding_?masks?$", "padding"),
        (r"masks?$", "mask"),
        (r"len(s|gths?)?$", "lengths"),
        (r"(freqs_?cis|rotary|rope)", "rotary"),
        (r"(pos(ition)?_?emb|pos_?enc|query_pos)", "embedded_positions"),
        (r"position_?ids?$", "positions"),
        (r"(cache|past)", "cache"),
        (r"^(enc|encoder|memory|ctx|context)_(seq|out|hid|state|feat|tensor)", "memory"),
        (r"^(use|is|has|return|need|output|with|do)_", "flag"),
    ),
    "result": (),
}
_TABLES = {"constructor": CONSTRUCTOR, "forward": FORWARD, "result": RESULT}
_ROLES = {
    table: {name: role for role, names in rows.items() for name in names.split()}
    for table, rows in _TABLES.items()
}


@functools.cache
def role_of(name: str, table: str, *, exact: bool = False) -> str | None:
    """What a name means.

    Args:
        name: an argument, a field of a config, or a key of a result.
        table: ``constructor``, ``forward`` or ``result``.
        exact: whether the ending of a name that is not in the table counts for nothing.

    Returns:
        A role of that table or ``flag``; ``None`` where the name says nothing.
    """
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    roles = _ROLES[table]
    bare = _OWNERS.sub("", plain)
    found = roles.get(plain) or roles.get(bare)
    if found or exact:
        return found
    endings = _ENDINGS[table]
    return next((role for pattern, role in endings if re.search(pattern, plain)), None)


TENSORS = ("query", "key", "value", "memory", "hidden")
"""Roles of the arguments that hold what a call is about."""


def named(role: str, table: str) -> tuple[str, ...]:
    """The names of a role, the usual ones first."""
    return tuple(_TABLES[table].get(role, "").split())
