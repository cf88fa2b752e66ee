"""ONNX Runtime's MultiHeadAttention, in the layout it wants: (B, L, H * D)."""

from __future__ import annotations

from typing import Any

import numpy as np
from job import Contender
from peers import AttentionProblem, Peer


class OnnxRuntime(Peer):
    """One operator in a session of its own. Float32 only; results go into an array that exists."""

    name = "onnxruntime"

    def __init__(self) -> None:
        import onnx
        import onnxruntime

        self.onnx: Any = onnx
        self.runtime: Any = onnxruntime
        self.version = str(onnxruntime.__version__)
        self.threads = 1

    def set_threads(self, threads: int) -> None:
        self.threads = threads

    def attention(self, problem: AttentionProblem) -> list[Contender]:
        q, k, v = problem.q, problem.k, problem.v
        masked = problem.visible is not None and problem.lengths is None
        if q.dtype != np.float32 or q.shape[1] != k.shape[1] or masked or q.shape[2] != k.shape[2]:
            return []
        batch, heads, length, _ = q.shape
        feeds = {name: rows_of(a) for name, a in (("query", q), ("key", k), ("value", v))}
        if problem.lengths is not None:
            feeds["key_padding_mask"] = problem.lengths.astype(np.int32)
        out = np.empty((batch, length, heads * v.shape[3]), np.float32)
        session = self.session(feeds, out, heads, problem.causal)
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("out", "cpu", 0, np.float32, out.shape, out.ctypes.data)

        def call() -> np.ndarray:
            session.run_with_iobinding(binding)
            return out

        def read(result: np.ndarray) -> np.ndarray:
            heads_first: np.ndarray = result.reshape(batch, length, heads, -1).swapaxes(1, 2)
            return heads_first

        return [Contender(self.name, self.name, call, read, problem.work)]

    def session(self, feeds: dict[str, np.ndarray], out: np.ndarray, heads: int, causal: bool) -> Any:
        """A model of one node."""
        helper, types = self.onnx.helper, self.onnx.TensorProto
        inputs = [*list(feeds)[:3], *(["", "key_padding_mask"] if len(feeds) > 3 else [])]  # "": no bias
        node = helper.make_node(
            "MultiHeadAttention", inputs, ["out"], domain="com.microsoft", num_heads=heads, unidirectional=int(causal)
        )
        kinds = {np.dtype(np.float32): types.FLOAT, np.dtype(np.int32): types.INT32}

        def described(name: str, array: np.ndarray) -> Any:
            return helper.make_tensor_value_info(name, kinds[array.dtype], array.shape)

        graph = helper.make_graph(
            [node], "attention", [described(*pair) for pair in feeds.items()], [described("out", out)]
        )
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=9)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        # Its workers would take the cores of the next contender.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def rows_of(array: np.ndarray) -> np.ndarray:
    """(B, H, L, D) -> (B, L, H * D)."""
    batch, heads, length, dim = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(batch, length, heads * dim)
