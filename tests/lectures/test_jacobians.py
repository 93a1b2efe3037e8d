"""∂L_T/∂h₀ as a product of Jacobians, against formulas written out by hand and against backpropagation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.inspection.claims.jacobians import fresh_chains, fresh_model, jacobian_chain, shortcut
from sightline.layers.layout import Padded
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

TOKENS, LABELS = [4, 7, 5, 9], [7, 5, 9, 6]
EXACT = {"rtol": 0.0, "atol": 1e-12}


def model_of(decoder: dict[str, Any], encoder: dict[str, Any] | None = None, width: int = 4) -> Any:
    decoder = {"kind": "recurrent", "attention": {"kind": "none"}, "dropout": 0.0, **decoder}
    sections: dict[str, Any] = {"width": width, "decoder": decoder, "tie": "none"}
    if encoder is not None:
        sections["encoder"] = {"kind": "recurrent", "layers": 1, "dropout": 0.0, **encoder}
    recipe = ModelConfig.model_validate(sections)
    torch.manual_seed(3)
    model = LanguageModel(recipe, 11) if encoder is None else Seq2Seq(recipe, 11, 11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
    return model.double().eval()


def test_the_factors_of_an_elman_network_are_its_weights_and_slopes() -> None:
    """∂h_t,j/∂h_{t−1},i = (1 − h_t,j²) W_h[j, i]; ∂L/∂h_T = W₂ᵀ (p − y)."""
    model = fresh_model("elman", 3)
    chain = jacobian_chain(model, TOKENS, LABELS)
    rnn, h = model.decoder.layers[0].rnn, [0.0] * 3
    w1, wh = rnn.weight_ih_l0.tolist(), rnn.weight_hh_l0.tolist()
    bias = (rnn.bias_ih_l0 + rnn.bias_hh_l0).tolist()
    for t, token in enumerate(TOKENS):
        x = model.embedding(torch.tensor([token]))[0].tolist()
        sums = [
            bias[j] + sum(w1[j][i] * x[i] for i in range(3)) + sum(wh[j][i] * h[i] for i in range(3)) for j in range(3)
        ]
        h = torch.tanh(torch.tensor(sums, dtype=torch.float64)).tolist()
        for i in range(3):
            for j in range(3):
                assert float(chain.factors[t, i, j]) == pytest.approx((1 - h[j] ** 2) * wh[j][i], abs=1e-12)
    weight = model.output.weight
    error = torch.softmax(weight @ torch.tensor(h, dtype=torch.float64) + model.output.bias, 0)
    error[LABELS[-1]] -= 1
    torch.testing.assert_close(chain.last, (weight.T @ error).detach(), **EXACT)


def test_the_cell_of_an_lstm_is_carried_by_its_forget_gate() -> None:
    """∂c_t/∂c_{t−1} = diag(f_t), ∂h_t/∂c_{t−1} = diag(o_t (1 − tanh² c_t) f_t); ∂c_t/∂h_{t−1} from the gates."""
    model = fresh_model("lstm", 3)
    chain = jacobian_chain(model, TOKENS, LABELS)
    rnn, h, c = model.decoder.layers[0].rnn, torch.zeros(3).double(), torch.zeros(3).double()
    with torch.no_grad():
        for factor, token in zip(chain.factors, TOKENS, strict=True):
            x = model.embedding(torch.tensor([token]))[0]
            sums = rnn.weight_ih_l0 @ x + rnn.bias_ih_l0 + rnn.weight_hh_l0 @ h + rnn.bias_hh_l0
            i, f, new, o = sums.split(3)
            i, f, new, o = i.sigmoid(), f.sigmoid(), new.tanh(), o.sigmoid()
            w_i, w_f, w_new, w_o = rnn.weight_hh_l0.split(3)
            to_c = (c * f * (1 - f))[:, None] * w_f + (new * i * (1 - i))[:, None] * w_i
            to_c = to_c + (i * (1 - new**2))[:, None] * w_new  # [j, i] = ∂c_t,j / ∂h_{t−1},i
            c = f * c + i * new
            slope = o * (1 - c.tanh() ** 2)
            to_h = (c.tanh() * o * (1 - o))[:, None] * w_o + slope[:, None] * to_c
            h = o * c.tanh()
            torch.testing.assert_close(factor[3:, 3:], torch.diag(f), **EXACT)
            torch.testing.assert_close(factor[3:, :3], torch.diag(slope * f), **EXACT)
            torch.testing.assert_close(factor[:3, 3:], to_c.T, **EXACT)
            torch.testing.assert_close(factor[:3, :3], to_h.T, **EXACT)
    assert chain.parts == 2 and chain.error < 1e-12


@pytest.mark.parametrize(
    "decoder",
    [
        {"cell": "elman", "layers": 1},
        {"cell": "elman", "layers": 2, "activation": "relu", "bias": False},
        {"cell": "gru", "layers": 1, "init_hidden": "learned"},
        {"cell": "lstm", "layers": 3, "skip_connections": "residual"},
        {"cell": "lstm", "layers": 2, "skip_connections": "fast-forward"},
    ],
)
def test_the_product_is_the_gradient_by_backpropagation(decoder: dict[str, Any]) -> None:
    chain = jacobian_chain(model_of(decoder), TOKENS, LABELS)
    assert float(chain.autograd.norm()) > 1e-4
    torch.testing.assert_close(chain.products()[-1], chain.autograd, **EXACT)


@pytest.mark.parametrize("decoder", [{}, {"input_feeding": True}, {"readout": "concatenate"}])
def test_the_product_is_the_gradient_with_attention_too(decoder: dict[str, Any]) -> None:
    model = model_of({"cell": "gru", "layers": 1, "attention": {"kind": "additive"}, **decoder}, {"cell": "gru"})
    with torch.no_grad():
        state = model.begin(model.encode(torch.tensor([[4, 6, 5]]), Padded.of([3])))
    chain = jacobian_chain(model, TOKENS, LABELS, state=state)
    assert float(chain.autograd.norm()) > 1e-4
    torch.testing.assert_close(chain.products()[-1], chain.autograd, **EXACT)


def test_attention_is_a_shortcut_to_the_encoder_states() -> None:
    """The paths of an Elman network with dot attention, from a computation written out step by step."""
    decoder = {"cell": "elman", "layers": 1, "attention": {"kind": "dot"}, "init_hidden": "last"}
    model = model_of({**decoder, "readout": "concatenate"}, {"cell": "elman", "bidirectional": False})
    source = [4, 6, 5, 8, 3]
    found = shortcut(model, source, TOKENS, LABELS[-1], [str(token) for token in source])

    def elman(rnn: Any, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(rnn.weight_ih_l0 @ x + rnn.bias_ih_l0 + rnn.weight_hh_l0 @ h + rnn.bias_hh_l0)

    def norms(attended: str) -> list[float]:
        states, h = [], torch.zeros(4).double()
        for x in model.source_embedding(torch.tensor(source)):
            h = elman(model.encoder.layers[0].rnn, x, h)
            states.append(h)
        values = torch.stack([state.detach() for state in states] if attended == "detached" else states)
        if attended == "alone":
            values, h = values.detach().requires_grad_(), h.detach()
        for x in model.target_embedding(torch.tensor(TOKENS)):
            h = elman(model.decoder.layers[0].rnn, x, h)
        weights = torch.softmax(values @ h, 0)
        logits = model.output(torch.cat([h, weights @ values]))
        loss = -logits.log_softmax(-1)[LABELS[-1]]
        if attended == "alone":
            torch.testing.assert_close(torch.tensor(found.weights).double(), weights.detach())
            return torch.autograd.grad(loss, values)[0].norm(dim=1).tolist()
        return [float(gradient.norm()) for gradient in torch.autograd.grad(loss, states)]

    assert found.both == pytest.approx(norms("")) and found.recurrence == pytest.approx(norms("detached"))
    assert found.attention == pytest.approx(norms("alone"))
    assert found.attention[0] / found.recurrence[0] > 10  # nine steps back


def test_gradients_shrink_faster_in_a_fresh_elman_network_than_in_an_lstm() -> None:
    elman, _, lstm = fresh_chains(["elman", "gru", "lstm"], 16, 30)
    kept = [float(chain.products()[-1].norm() / chain.last.norm()) for chain in (elman, lstm)]
    assert kept[0] < 0.01 * kept[1]


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ({"kind": "transformer", "heads": 2, "attention": None}, "give a run with a recurrent decoder"),
        ({"query": "previous", "attention": {"kind": "dot"}}, "query: previous: the loss of a token depends on two"),
    ],
)
def test_models_without_such_a_product_are_refused(decoder: dict[str, Any], message: str) -> None:
    decoder = {key: value for key, value in {"attention": {"kind": "dot"}, **decoder}.items() if value is not None}
    recipe = ModelConfig.model_validate(
        {"width": 4, "encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent", **decoder}, "tie": "none"}
    )
    with pytest.raises(ValueError, match=message):
        jacobian_chain(Seq2Seq(recipe, 11, 11), TOKENS, LABELS)


def test_the_command_prints_writes_and_draws(tmp_path: Path) -> None:
    file, figure = tmp_path / "chain.json", tmp_path / "chain.png"
    arguments = ["inspect", "claims", "jacobians", "--cell", "elman", "--width", "2"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert shown.exit_code == 0 and "∂h₄/∂h₃" in shown.output and "∂L/∂h₀ (product)" in shown.output
    files = ["--json", str(file), "--figure", str(figure)]
    assert CliRunner().invoke(app, [*arguments, *files], catch_exceptions=False).exit_code == 0
    assert len(json.loads(file.read_text())["chains"][0]["factors"]) == 4 and figure.stat().st_size > 5_000
