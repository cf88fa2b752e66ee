"""Decoding with a cache equals the whole, causally."""

import pytest
import tegula as tg

torch = pytest.importorskip("torch")
nn = tg.torch.nn

pytestmark = pytest.mark.isa_once

D, H, L, B = 32, 4, 9, 2


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def decoded(layer, x, cache, sizes, **options):
    with torch.no_grad():
        return torch.cat([layer(part, cache=cache, **options) for part in x.split(sizes, 1)], 1)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"window": 3}, {"causal": True}, {"fused": False}])
@pytest.mark.parametrize("sizes", [[1] * L, [5, 1, 1, 2], [L]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_is_the_whole(dtype, sizes, options):
    layer = nn.MultiHeadAttention(D, H, dtype=dtype, **options).eval()
    x = torch.randn(B, L, D, dtype=dtype)
    cache = layer.new_cache(B, max_len=20)
    assert cache.k.shape == (B, layer.num_kv_heads, 20, D // H) and cache.k.dtype == dtype
    with torch.no_grad():
        whole = layer(x, causal=True)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(decoded(layer, x, cache, sizes), whole, rtol=tolerance, atol=tolerance)
    assert cache.length.tolist() == [L]
    cache.reset()
    torch.testing.assert_close(decoded(layer, x, cache, sizes), whole, rtol=tolerance, atol=tolerance)


def test_left_padded_prompts():
    """Masks speak of the keys in the cache; as they grow, shorter ones do."""
    layer = nn.MultiHeadAttention(D, H).eval()
    x = torch.randn(B, L, D)
    keep = torch.ones(B, L, dtype=torch.bool)
    keep[1, :4] = False
    with torch.no_grad():
        whole = layer(x, causal=True, key_padding=keep)
        alone = layer(x[1:, 4:], causal=True)
        growing = layer.new_cache(B, 16)
        parts = [layer(x[:, :5], cache=growing, key_padding=keep[:, :5])]
        parts += [layer(x[:, i : i + 1], cache=growing, key_padding=keep[:, : i + 1]) for i in range(5, L)]
    found = torch.cat(parts, 1)
    torch.testing.assert_close(found[keep], whole[keep], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1:, 4:], alone, rtol=1e-6, atol=1e-6)
    for options in ({"key_padding": keep.int()}, {"mask": keep[:, None]}, {"mask": keep[:, None, None]}):
        again = decoded(layer, x, layer.new_cache(B, 16), 1, **options)
        torch.testing.assert_close(again[keep], whole[keep], rtol=1e-6, atol=1e-6)
    padded = tg.masks.padding(keep=torch.nn.functional.pad(keep, (0, 7), value=True))
    again = decoded(layer, x, layer.new_cache(B, 16), 1, mask=padded)
    torch.testing.assert_close(again[keep], whole[keep], rtol=1e-6, atol=1e-6)


def test_one_sentence_without_a_batch_axis():
    layer = nn.MultiHeadAttention(D, H).eval()
    x = torch.randn(L, D)
    cache = layer.new_cache(1, L)
    with torch.no_grad():
        parts = [layer(x[i : i + 1], cache=cache) for i in range(L)]
        torch.testing.assert_close(torch.cat(parts), layer(x, causal=True), rtol=1e-6, atol=1e-6)


def test_decoding_under_autocast():
    layer = nn.MultiHeadAttention(D, H).eval()
    x = torch.randn(B, L, D)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found, whole = decoded(layer, x, layer.new_cache(B, L, dtype=torch.bfloat16), 1), layer(x, causal=True)
    assert found.dtype == whole.dtype == torch.bfloat16
    torch.testing.assert_close(found, whole, rtol=1e-2, atol=1e-2)


def test_a_cache_for_a_layer_with_an_adapter():
    layer = nn.MultiHeadAttention(D, H, dtype=torch.bfloat16)
    layer.out_proj = torch.nn.Sequential(layer.out_proj, torch.nn.Identity())
    assert layer.new_cache(B, L).k.dtype == torch.bfloat16


def test_what_lies_behind_the_last_token_is_never_seen():
    layer = nn.MultiHeadAttention(D, H).eval()
    x = torch.randn(B, L, D)
    cache = layer.new_cache(B, 16)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.inf)
    assert decoded(layer, x, cache, 1).isfinite().all()


def test_beams_change_places():
    layer = nn.MultiHeadAttention(D, H).eval()
    x = torch.randn(B, L, D)
    cache = layer.new_cache(B, L)
    decoded(layer, x[:, : L - 1], cache, L - 1)
    cache.reorder(torch.tensor([1, 1]))
    last = decoded(layer, x[:, L - 1 :], cache, 1)
    with torch.no_grad():
        mixed = torch.cat([x[[1, 1], : L - 1], x[:, L - 1 :]], 1)
        torch.testing.assert_close(last, layer(mixed, causal=True)[:, -1:], rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"order must have shape \(B,\) = \(2,\)"):
        cache.reorder(torch.tensor([1]))


def test_bad_caches():
    layer = nn.MultiHeadAttention(D, H).eval()
    x = torch.randn(B, L, D)
    cache = layer.new_cache(B, 10)
    with torch.no_grad():
        layer(x, cache=cache)
        with pytest.raises(ValueError, match=r"holds 9 of max_len=10 tokens, and 2 more do not fit.*larger max_len"):
            layer(x[:, :2], cache=cache)
        assert cache.length.item() == L  # nothing was written
        with pytest.raises(ValueError, match=r"k has shape \(1, 4, 1, 8\)"):
            layer(x[:1, :1], cache=cache)
        with pytest.raises(TypeError, match="but the cache torch.float32"):
            nn.MultiHeadAttention(D, H, dtype=torch.float64)(x[:, :1].double(), cache=cache)
        with pytest.raises(ValueError, match="mask has shape"):
            layer(x[:, :1], cache=cache, mask=torch.ones(1, 11, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"key_padding has shape .2, 9., but with these tokens the cache holds 10"):
            layer(x[:, :1], cache=cache, key_padding=torch.ones(2, L, dtype=torch.bool))
        with pytest.raises(ValueError, match="bias has shape"):
            layer(x[:, :1], cache=cache, bias=torch.ones(3, 10))
        with pytest.raises(ValueError, match="k must have as many rows as q, got 1 and 2"):
            layer(x[:, :2], x[:, :1], cache=cache)
        assert cache.length.item() == L
        with pytest.raises(TypeError, match=r"cache must be a KVCache, as new_cache\(\) makes it, got dict"):
            layer(x[:, :1], cache={})
    with pytest.raises(RuntimeError, match=r"torch.no_grad\(\) or torch.inference_mode\(\)"):
        layer(x[:, :1], cache=cache)
    with pytest.raises(ValueError, match="max_len must be at least 1"):
        layer.new_cache(B, 0)
    assert "KVCache(2, 10, 4, 8" in repr(cache)
