"""The entry point vllm.general_plugins: names octavo's backend to vLLM, which imports it when it needs one. doc/VLLM.md."""


def register() -> None:
    """On a CPU octavo takes the place of CPU_ATTN, since vLLM asks for no other there; on a GPU it is `--attention-backend CUSTOM`. Safe to call again."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    register_backend(AttentionBackendEnum.CPU_ATTN if current_platform.is_cpu() else AttentionBackendEnum.CUSTOM, "octavo.vllm.OctavoBackend")
