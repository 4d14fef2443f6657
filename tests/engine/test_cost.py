"""Costs, targets and the schedule."""

import pytest
import torch

from eqsat.engine.cost import CostModel
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.products import hint, product_flops
from eqsat.engine.schedule import load_schedule
from eqsat.engine.source import RuleErrors
from eqsat.engine.target import load_target

TABLE = OpTable(builtin_book().ops)
LOWERED = {"add": "pointwise", "exp": "pointwise", "view": "view", "sum": "reduction"}
MODEL = CostModel(load_target("cpu"), LOWERED)
BIG = torch.empty(1024, 1024, device="meta")


def seconds(name, *inputs, out):
    return MODEL.seconds(TABLE.find(name), inputs, out)


def test_what_fuses_is_cheaper_than_what_does_not():
    view = seconds("view", BIG, out=BIG)
    add = seconds("add", BIG, BIG, out=BIG)
    call = seconds("softmax", BIG, out=BIG)
    assert view < add < call
    assert seconds("sum", BIG, out=BIG[:, 0]) < call


def test_products_cost_their_arithmetic():
    small, large = torch.empty(512, 512, device="meta"), BIG
    assert seconds("mm", large, large, out=large) > 7 * seconds("mm", small, small, out=small)
    assert product_flops("mm", [BIG, BIG], BIG) == 2 * 1024**3
    bias = BIG[0]
    assert product_flops("addmm", [bias, BIG, BIG], BIG) == 2 * 1024**3
    heads = torch.empty(2, 4, 8, 16, device="meta")
    assert product_flops("sdpa", [heads, heads, heads], heads) == 2 * 2 * 4 * 8 * 8 * 32


def test_one_wide_product_beats_three_narrow_ones():
    x, w = torch.empty(64, 64, device="meta"), torch.empty(64, 64, device="meta")
    wide_weight = torch.empty(64, 192, device="meta")
    narrow = 3 * seconds("mm", x, w, out=x)
    slices = 3 * seconds("view", x, out=x)
    assert seconds("mm", x, wide_weight, out=wide_weight) + slices < narrow


@pytest.mark.parametrize("name", ["cpu", "h200", "generic", "xpu"])
def test_targets_load(name):
    target = load_target(name)
    assert target.matrix_rate("f32") > 0
    assert target.matrix_rate("c64") == target.flops["any"]
    assert target.traffic(1e9) > target.traffic(1e3)


def test_a_bad_target_names_its_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\ndevice: cpu\nflops: {any: 1}\n")
    with pytest.raises(RuleErrors, match=r"mine\.yaml:1:1: error: a target has no 'bandwidth'"):
        load_target("mine", tmp_path)


def test_hints_never_guard():
    assert hint(5) == 5


def test_the_schedule_names_every_folder_once():
    schedule = load_schedule()
    assert schedule.stage_of("joint") == "joint"
    assert schedule.stage_of("somebody") == "post_grad"
    for stage in ("pre_grad", "joint", "post_grad"):
        phases = schedule.phases(stage)
        assert sum(phase.others for phase in phases) == 1
        for phase in phases:
            assert all(schedule.stage_of(folder) == stage for folder in phase.folders)
    assert schedule.phases("trace") == ()


def test_a_bad_schedule_names_the_entry(tmp_path):
    path = tmp_path / "schedule.yaml"
    path.write_text("folders: {a: joint}\nstages:\n  joint:\n    - {phase: one, folder: [a]}\n")
    with pytest.raises(RuleErrors, match=r"yaml:4:20: .* no 'folder' .did you mean 'folders'"):
        load_schedule(path)
