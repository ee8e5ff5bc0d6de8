"""Signatures: written down here, so that a release that changes them has to say so."""

import os
import subprocess
import sys

from traincast.mesh import Mesh

KNOWN = {
    "826ae75f1807": "Mesh(tp=2, pp=4, dp=2)",
    "dbee5dbc9bb1": "Mesh(tp=8, pp=64, dp=6)",
    "864d94acbdb6": "Mesh(tp=2, dp=4, etp=2, ep=2)",
}


def test_signatures_do_not_change():
    for signature, text in KNOWN.items():
        assert eval(text, {"Mesh": Mesh}).signature() == signature


def test_signatures_are_the_same_in_another_process():
    program = f"from traincast.mesh import Mesh; print(*(m.signature() for m in [{', '.join(KNOWN.values())}]))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == list(KNOWN)


def test_placement_counts_unless_it_is_the_identity():
    plain = Mesh(tp=2, dp=2).signature()
    assert Mesh(tp=2, dp=2, placement=(0, 1, 2, 3)).signature() == plain
    assert Mesh(tp=2, dp=2, placement=(0, 2, 1, 3)).signature() != plain


def test_what_changes_groups_changes_the_signature():
    meshes = [
        Mesh(tp=2, dp=4),
        Mesh(tp=4, dp=2),
        Mesh(cp=2, dp=4),
        Mesh(tp=2, dp=4, order="dp-tp"),
        Mesh(tp=2, dp=4, ep=2),
        Mesh(tp=2, dp=4, ep=4),
        Mesh(tp=2, dp=4, ep=2, etp=2),
        Mesh(tp=2, dp=4, ep=2, etp=2, order="ep-tp-dp"),
        Mesh(tp=2, dp=2, pp=2),
        Mesh(tp=2, dp=2),
    ]
    assert len({mesh.signature() for mesh in meshes}) == len(meshes)
