"""Links in shared objects of their own: found, judged before they are used, refused with the remedy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tailbound as tb
from tailbound import build_plugin, host, links_cmd

ROOT = Path(__file__).resolve().parent.parent.parent

PLUGIN = """
#include "links/plugin.h"
static const tb_link_ops ops = {.name = "fake"};
static const tb_link_plugin plugin = {%s, TB_PLUGIN_SIZES + %d, "fake", "Fake 1.2", &ops};
__attribute__((visibility("default"))) const tb_link_plugin *%s(void);
const tb_link_plugin *%s(void) { return &plugin; }
"""


def compiled(folder, abi="TB_PLUGIN_ABI", more=0, symbol="tb_link_plugin_get", number=1, flags=()):
    source = folder / "fake.c"
    source.write_text(PLUGIN % (abi, more, symbol, symbol))
    target = folder / f"libtailbound_fake-{number}.so"
    cc = os.environ.get("CC", "cc")
    subprocess.run(
        [cc, "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{ROOT / 'native'}", source, "-o", target, *flags], check=True
    )
    return target


def about(folder, name="fake"):
    """In a process of its own: a plugin stays loaded for a process's life."""
    code = (
        "import sys\nfrom tailbound.config import Config\nfrom tailbound.links_cmd import about\n"
        f"config = Config()\nconfig.set('plugins', {str(folder)!r})\n"
        f"there, text = about(config, {name!r})\nprint(int(there), text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    there, _, sentence = done.stdout.strip().partition(" ")
    return there == "1", sentence


def test_plugin__is_found_and_named(tmp_path):
    target = compiled(tmp_path)
    assert about(tmp_path) == (True, f"Fake 1.2, {target}")
    assert about(f"/nonexistent:{tmp_path}") == (True, f"Fake 1.2, {target}")


@pytest.mark.parametrize(
    ("build", "word"),
    [
        ({"abi": "TB_PLUGIN_ABI + 1"}, "another version of tailbound"),
        ({"more": 8}, "another version of tailbound"),
        ({"symbol": "something"}, "something else"),
    ],
)
def test_plugin__of_another_build_is_refused(tmp_path, build, word):
    target = compiled(tmp_path, **build)
    there, sentence = about(tmp_path)
    assert not there
    for part in (str(target), word, "tailbound build-plugin fake"):
        assert part in sentence


def test_plugin__that_cannot_be_loaded_says_what_is_missing(tmp_path):
    library = tmp_path / "libneeded.so"
    cc = os.environ.get("CC", "cc")
    (tmp_path / "needed.c").write_text("int needed(void) { return 1; }")
    subprocess.run([cc, "-shared", "-fPIC", tmp_path / "needed.c", "-o", library], check=True)
    compiled(tmp_path, flags=("-Wl,--no-as-needed", f"-L{tmp_path}", "-lneeded"))
    library.unlink()
    there, sentence = about(tmp_path)
    assert not there
    assert "libneeded.so" in sentence
    assert "tailbound build-plugin fake" in sentence


def test_plugin__a_damaged_one_hides_no_good_one(tmp_path):
    target = compiled(tmp_path, number=1)
    (tmp_path / "libtailbound_fake-2.so").write_bytes(b"no object")
    assert about(tmp_path) == (True, f"Fake 1.2, {target}")


def test_plugin__of_the_newest_library_is_taken(tmp_path):
    for number in (9, 23, 100):
        compiled(tmp_path, number=number)
    assert about(tmp_path) == (True, f"Fake 1.2, {tmp_path / 'libtailbound_fake-100.so'}")


def test_plugin__in_a_folder_that_nobody_named_must_be_safe(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "tailbound" / "plugins"
    folder.mkdir(parents=True)
    target = compiled(folder)
    target.chmod(0o755)
    folder.chmod(0o755)
    assert about("") == (True, f"Fake 1.2, {target}")
    for unsafe in (target, folder):
        unsafe.chmod(0o777)
        there, sentence = about("")
        assert not there
        assert f"{target} can be changed by anybody" in sentence
        assert about(folder) == (True, f"Fake 1.2, {target}")
        unsafe.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(target, 12345, -1)
        there, sentence = about("")
        assert not there
        assert f"{target} belongs to another user" in sentence


def test_plugin__that_is_nowhere(tmp_path):
    there, sentence = about(tmp_path)
    assert not there
    assert f"no libtailbound_fake-*.so in {tmp_path}" in sentence
    assert "tailbound build-plugin fake" in sentence


def in_a_fresh_process(code):
    """Other tests of this process may have loaded the plugin, which stays."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_init__without_the_plugin_is_a_config_error(tmp_path):
    said = in_a_fresh_process(
        "import tailbound as tb\ntry:\n"
        f"    tb.init(link='dpdk', plugins={str(tmp_path)!r}, rank=0, size=2, init_timeout=5)\n"
        "except tb.ConfigError as error:\n    print(error)\n"
    )
    assert "tailbound build-plugin dpdk" in said


def test_links__says_what_can_be_had(tmp_path):
    said = in_a_fresh_process(
        "from tailbound.config import Config\nfrom tailbound.links_cmd import links\n"
        f"config = Config()\nconfig.set('plugins', {str(tmp_path)!r})\n"
        "print([row[:2] for row in links(config)])\n"
    )
    assert said.strip() == "[('udp', 'yes'), ('dpdk', 'no'), ('verbs', 'no'), ('sim', 'yes')]"


def test_network_devices__have_a_spec_and_a_driver():
    for device in host.network_devices():
        assert device.spec
        assert device.driver
        assert device.node >= -1


@pytest.mark.parametrize(
    ("spec", "driver", "word"),
    [
        ("0000:03:00.0", "ixgbe", "bound to ixgbe, the kernel's: modprobe vfio-pci && dpdk-devbind.py -b vfio-pci 0"),
        ("0000:03:00.0", "none", "bound to no driver: modprobe"),
        ("0000:03:00.0", "vfio-pci", ""),
        ("0000:03:00.0", "mlx5_core", ""),
        ("af_packet:eth0", "ixgbe", ""),
    ],
)
def test_links__says_of_a_device_what_has_to_be_done_first(monkeypatch, capsys, spec, driver, word):
    monkeypatch.setattr(host, "network_devices", lambda: [host.Device(spec, driver, None, None, -1)])
    links_cmd._devices()
    said = capsys.readouterr().out
    assert spec in said
    assert word in said
    assert ("bound to" in said) == bool(word)


def test_build__of_an_unknown_plugin():
    with pytest.raises(tb.ConfigError, match="no plugin 'ucx': dpdk, verbs"):
        build_plugin.build("ucx")


@pytest.mark.parametrize(("name", "package"), [("dpdk", "libdpdk-dev"), ("verbs", "libibverbs-dev")])
def test_build__without_the_library_names_the_package(tmp_path, monkeypatch, name, package):
    monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path))
    monkeypatch.delenv("PKG_CONFIG_PATH", raising=False)
    with pytest.raises(tb.ConfigError, match=f"apt-get install {package}"):
        build_plugin.build(name, str(tmp_path))


def test_build__without_pkg_config(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(tb.ConfigError, match="pkg-config"):
        build_plugin.build("dpdk", str(tmp_path))


def test_build__to_a_place_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tb.ConfigError, match="--to"):
        build_plugin.build("dpdk", str(tmp_path / "file" / "below"))
