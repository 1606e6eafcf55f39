"""The entry point sglang.srt.plugins: makes `--attention-backend octavo` known to SGLang, in each of its processes. doc/SGLANG.md."""


def register() -> None:
    """Safe to call again."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    if "octavo" not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices(["octavo"])

    @register_attention_backend("octavo")
    def create(model_runner):
        from .sglang import OctavoAttnBackend
        return OctavoAttnBackend(model_runner)
