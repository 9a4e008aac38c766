"""Malicious files, one for each class that was made public; what they would run is ``os.getcwd`` or ``print``.

A sample is a function that writes files into a folder, with the rule that has to find it and where it was published.
"""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
import zlib

SAMPLES = {}


def sample(rule, published):
    """Enter a sample under its function's name."""

    def enter(make):
        SAMPLES[make.__name__] = (make, rule, published)
        return make

    return enter


def entered(name, rule, published, content, file="model.pkl"):
    """Enter a sample of one file."""

    def make(folder):
        (folder / file).write_bytes(content)

    SAMPLES[name] = (make, rule, published)


def code(name, published, content, file="model.pkl"):
    """Enter a pickle that runs code."""
    entered(name, "pickle-code", published, content, file)


class Runs:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def assembled(*steps, protocol=4):
    return bytes([0x80, protocol]) + b"".join(steps) + b"."


def text(word):
    return b"\x8c" + bytes([len(word)]) + word.encode()


def imported(module, name):
    return text(module) + text(name) + b"\x93"


def called(module, name, *arguments, then=b""):
    """A pickle that imports a function by STACK_GLOBAL and calls it."""
    call = {0: b")R", 1: b"\x85R", 2: b"\x86R"}[len(arguments)]
    return assembled(imported(module, name) + b"".join(arguments) + call + then)


def in_bytes(content):
    return b"C" + bytes([len(content)]) + content


CODE = pickle.dumps(Runs(os.getcwd))
GETCWD = imported("os", "getcwd") + b")R"
PLAIN = pickle.dumps({"a": 1})


def zipped(*entries, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of entries that are there twice
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name) if isinstance(name, str) else name, content, compression)
    return stream.getvalue()


def checkpoint(content=CODE):
    return zipped(("archive/data.pkl", content), ("archive/version", b"3\n"), ("archive/data/0", bytes(64)))


def changed(content, *changes):
    for offset, new in changes:
        content = content[:offset] + new + content[offset + len(new) :]
    return content


def listed(content, offset=0):
    """Return a place in the last entry of an archive's list of contents."""
    return content.rindex(b"PK\x01\x02") + offset


# --- pickles ---

code("pickle_that_calls", "MITRE ATLAS AML.T0011.000", CODE, "pytorch_model.bin")
code("checkpoint_that_calls", "CVE-2025-32434, CVE-2026-24747", checkpoint(), "pytorch_model.bin")
code("call_by_inst", "picklescan issue 13", b"(S'eval'\nios\ngetcwd\n.")
code("call_by_obj", "CWE-502", b"(cos\ngetcwd\no.")
code(
    "confused_memo",
    "picklescan issue 14",
    assembled(
        text("os") + b"q\x00" + text("getcwd") + b"q\x01" + text("torch._utils") + b"\x94" + text("_rebuild") + b"\x94",
        b"h\x00h\x01\x93)R",
    ),
)
code(
    "memo_out_of_order",
    "picklescan issue 22",
    assembled(text("collections") + b"q\x05" + text("os") + b"q\x00" + text("getcwd") + b"q\x09h\x00h\x09\x93)R"),
)
code("pip_main", "CVE-2025-1716", called("pip", "main"))
code("resolve_name", "GHSA-vvpj-8cmc-gx39", called("pkgutil", "resolve_name", text("os:getcwd"), then=b")R"))
code("import_module", "picklescan issue 66", called("importlib", "import_module", text("os")))
code("asyncio_submodule", "CVE-2025-10157", called("asyncio.unix_events", "_UnixSubprocessTransport._start"))
code("standard_library", "CVE-2026-56315", called("uuid", "_get_command_stdout"))
code("ensurepip", "GHSA-xp4f-hrf8-rxw7", called("ensurepip", "_run_pip"))
code("method_caller", "CVE-2025-71373", called("_operator", "methodcaller"))
code("pydoc_locate", "GHSA-84r2-jw7c-4r5q", called("pydoc", "locate", text("os")))
code("write_file", "GHSA-m273-6v24-x4m4", called("distutils.file_util", "write_file", text("made"), b"]"))
code("name_in_the_first_step", "GHSA-9gvj-pp9x-gcfr", b"S'os'\nS'getcwd'\n\x93)R.")
code("file_handler", "CVE-2026-56304", called("logging", "FileHandler", text("made")))
code("subinterpreter", "fickling GHSA-mhc9-48gj-9gp3", assembled(imported("_interpreters", "create") + b")R}b"))
code("pty_spawn", "fickling CVE-2025-67748", b"(cpty\nspawn\nS'id'\no.")
code("builtins_eval", "fickling CVE-2026-22612", called("builtins", "eval", text("print(1)")))
code("popped_call", "fickling GHSA-mxhj-88fx-4pcv", assembled(GETCWD, b"0N"))
entered("numpy_gadget", "pickle-import", "CVE-2025-71372", called("numpy.f2py.crackfortran", "getlincoef"))
entered(
    "torch_gadget",
    "pickle-import",
    "modelscan issue 311",
    called("torch.utils.bottleneck.__main__", "run_cprofile"),
)
code("computed_name", "CWE-502", assembled(text("os") + text("getcwd") + b"\x85\x93)R"))
code("extension_registry", "CWE-502", assembled(b"\x82\x01)R"))
code(
    "changed_class",
    "CWE-915",
    assembled(imported("torch.nn.parameter", "Parameter") + b"N}" + text("__new__") + b"Ns\x86b"),
)
code("broken_stream", "nullifAI (ReversingLabs)", assembled(GETCWD, b"\xff\xff\xff"), "pytorch_model.bin")
entered(
    "unparsable_stream",
    "pickle-broken",
    "CWE-703",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}\x94\xfe",
    "pytorch_model.bin",
)
code("nested_pickle", "picklescan issue 24", called("_pickle", "loads", in_bytes(CODE)))
code("nested_storage", "CWE-502", called("torch.storage", "_load_from_bytes", in_bytes(CODE)))
code("second_pickle", "CWE-502", PLAIN + CODE)
code("second_pickle_of_protocol_0", "CWE-502", PLAIN + b"cos\ngetcwd\n(tR.")
code(
    "legacy_checkpoint",
    "CVE-2025-32434",
    b"".join(pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {})) + CODE + pickle.dumps([], 2),
    "old.pt",
)
entered(
    "allocation",
    "pickle-bomb",
    "CWE-789",
    called("builtins", "bytearray", b"\x8a\x06" + (10**14).to_bytes(6, "little")),
)
entered("pickle_called_safetensors", "pickle-hidden", "CVE-2025-1889, CVE-2025-10155", CODE, "model.safetensors")
entered("pickle_called_json", "pickle-hidden", "CVE-2025-1889", b"cos\ngetcwd\n(tR.", "config.json")
code("pickle_called_dat", "CVE-2025-1889", CODE, "weights.dat")
_OBJECTS = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
_NUMPY = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(_OBJECTS)) + _OBJECTS
code("numpy_objects", "CVE-2019-6446", _NUMPY + CODE, "vectors.npy")
code("compressed_pickle", "CVE-2020-13092", gzip.compress(CODE), "head.joblib")

# --- archives ---


def flagged(content):
    return changed(content, (6, b"\x01\x00"), (content.index(b"PK\x01\x02") + 8, b"\x01\x00"))


def miscounted(content):
    return changed(content, (14, bytes(4)), (content.index(b"PK\x01\x02") + 16, bytes(4)))


def archive(name, rule, published, content, file="model.pt"):
    entered(name, rule, published, content, file)


_LINK = zipfile.ZipInfo("link")
_LINK.external_attr = 0o120777 << 16
_NESTED = PLAIN
for _ in range(8):
    _NESTED = zipped(("inner.zip", _NESTED))
_TWO = zipped(("a", b"x" * 100), ("b", b"x" * 100))
_KERAS = {"class_name": "function", "module": "os", "config": "getcwd", "registered_name": "function"}

archive("encrypted_flag", "zip-hidden-flags", "CVE-2025-1945", flagged(checkpoint()))
archive("behind_encrypted_flag", "pickle-code", "CVE-2025-1945", flagged(checkpoint()))
archive("another_name", "zip-names-differ", "CVE-2025-1944", changed(checkpoint(), (30, b"archive/dato.pkl")))
archive("wrong_checksum", "zip-wrong-checksum", "CVE-2025-10156", miscounted(checkpoint(PLAIN)))
archive("behind_wrong_checksum", "pickle-code", "CVE-2025-10156", miscounted(checkpoint()))
archive("duplicate_entry", "zip-duplicate-entry", "CVE-2013-4787", zipped(("a/data.pkl", PLAIN), ("a/data.pkl", PLAIN)))
archive("zip_slip", "zip-traversal", "CVE-2018-1002200", zipped(("../../.bashrc", b"print")), "model.zip")
archive("zip_link", "zip-traversal", "CWE-61", zipped((_LINK, b"/etc/passwd")), "model.zip")
archive("overlapping_entries", "zip-bomb", "CVE-2024-0450", changed(_TWO, (listed(_TWO, 42), struct.pack("<I", 0))))
archive("nested_archives", "zip-bomb", "CWE-409", _NESTED, "model.zip")
archive("concatenated_archives", "zip-hidden-bytes", "CWE-436", checkpoint(PLAIN) * 2)
archive("pickle_before_archive", "pickle-code", "CWE-436", CODE + checkpoint(PLAIN))
archive("broken_archive", "zip-broken", "CVE-2025-1944", checkpoint(PLAIN)[:-30])
archive("seven_zip", "archive-unread", "nullifAI (ReversingLabs)", b"7z\xbc\xaf'\x1c" + bytes(100), "pytorch_model.bin")
archive(
    "torch_script",
    "torchscript",
    "CVE-2025-32434",
    zipped(("m/data.pkl", PLAIN), ("m/code/__torch__.py", b"def f(): pass"), ("m/constants.pkl", PLAIN)),
)
archive("keras_module", "keras-code", "CVE-2025-1550", zipped(("config.json", json.dumps(_KERAS))), "model.keras")
archive(
    "keras_lambda",
    "keras-code",
    "CVE-2024-3660",
    b"\x89HDF\r\n\x1a\n" + bytes(2**20) + b'{"class_name": "Lambda", "config": 1}',
    "tf_model.h5",
)


@sample("zip-bomb", "CWE-409")
def deflate_bomb(folder):
    content = zipped(("a/data/0", bytes(80 * 2**20)), compression=zipfile.ZIP_DEFLATED)
    (folder / "model.pt").write_bytes(content)


@sample("zip-traversal", "CVE-2007-4559")
def tar_slip(folder):
    with tarfile.open(folder / "model.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../../made"))


# --- safetensors ---


def safetensors(header, data=b"", size=None):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(content) if size is None else size) + content + data


def tensor(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def lie(name, content, rule="safetensors-header"):
    """Enter a safetensors file whose header lies."""
    published = "Trail of Bits, Safetensors security assessment (2023)"
    entered(name, rule, published, content, "model.safetensors")


_ONE = {"a": tensor(0, 4, [1])}

lie("header_beyond_the_file", safetensors(_ONE, bytes(4), size=10**10))
lie("header_of_nothing", b"\x01\x02")
lie("overlapping_tensors", safetensors({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, bytes(12)))
lie("tensor_out_of_range", safetensors({"a": tensor(0, 400, [100])}, bytes(4)))
lie("hole_between_tensors", safetensors({"a": tensor(0, 4, [1]), "b": tensor(40, 44, [1])}, bytes(44)))
lie("bytes_behind_tensors", safetensors(_ONE, bytes(4) + CODE))
lie("duplicate_tensor", safetensors(b'{"a":%s,"a":%s}' % ((json.dumps(tensor(0, 4, [1])).encode(),) * 2), bytes(4)))
lie("shape_against_bytes", safetensors({"a": tensor(0, 4, [1000, 1000])}, bytes(4)))
lie("overflowing_shape", safetensors({"a": tensor(0, 4, [2**32, 2**32, 2**32])}, bytes(4)))
lie("negative_place", safetensors({"a": tensor(-4, 0, [1])}, bytes(4)))
lie("unknown_type", safetensors({"a": tensor(0, 4, [1], "PICKLE")}, bytes(4)))
lie("header_not_utf_8", safetensors(b'{"\xff\xfe": 1}', bytes(4)))
lie("metadata_of_objects", safetensors({"__metadata__": {"a": {"b": 1}}, **_ONE}, bytes(4)))
lie("deep_header", safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "safetensors-bomb")
lie("huge_number_in_header", safetensors(b'{"a":' + b"9" * 10_000 + b"}"), "safetensors-bomb")


@sample("safetensors-bomb", "Trail of Bits, Safetensors security assessment (2023)")
def huge_header(folder):
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 10**10) + b"{")
        file.truncate(10**10 + 8)  # a sparse file


# --- settings ---


def settings(name, content, rule, published, file="config.json"):
    """Enter a file of settings."""
    written = content if isinstance(content, bytes) else json.dumps(content).encode()
    entered(name, rule, published, written, file)


settings("auto_map", {"auto_map": {"AutoModel": "modeling.Evil"}}, "remote-code", "trust_remote_code")
settings("auto_map_elsewhere", {"auto_map": {"AutoModel": "evil/code--modeling.M"}}, "remote-code", "trust_remote_code")
settings("own_trust", {"sub": {"trust_remote_code": True}}, "remote-code", "CVE-2026-5241")
settings("remote_kernel", {"_attn_implementation_internal": "evil/kernel"}, "remote-kernel", "CVE-2026-4372")
settings("deep_json", b"[" * 200_000 + b"]" * 200_000, "json-bomb", "CWE-674")
settings("huge_integer", b'{"vocab_size": ' + b"1" * 100_000 + b"}", "json-bomb", "CVE-2020-10735")
settings("many_values", b"[" + b"[]," * 9_000_000 + b"[]]", "json-bomb", "CWE-770", "tokenizer.json")


@sample("json-bomb", "CWE-770")
def too_large(folder):
    (folder / "config.json").touch()
    os.truncate(folder / "config.json", 65 * 2**20)  # a sparse file


settings("claimed_10_gb", {"vocab_size": 10**12, "hidden_size": 768}, "claim-bomb", "CWE-789")
settings("fixed_padding", {"padding": {"strategy": {"Fixed": 10**10}}}, "claim-bomb", "CWE-789", "tokenizer.json")
settings("two_keys", b'{"model_type": "bert", "model_type": "other"}', "json-duplicate-key", "CWE-436")
settings("no_json", b'{"model_type": ', "json-broken", "CWE-20")
settings("module_of_others", [{"type": "subprocess.Popen", "path": ""}], "module-type", "CWE-470", "modules.json")
settings(
    "module_elsewhere",
    [{"type": "sentence_transformers.models.Transformer", "path": "../../x"}],
    "path-traversal",
    "CWE-22",
    "modules.json",
)
settings(
    "shard_elsewhere",
    {"weight_map": {"a": "../../../etc/passwd"}},
    "path-traversal",
    "CWE-22",
    "model.safetensors.index.json",
)
settings(
    "chat_template",
    {"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
    "template-code",
    "CVE-2024-34359",
    "tokenizer_config.json",
)
settings(
    "template_by_attr",
    {"chat_template": [{"name": "default", "template": "{{ x|attr('\\x5f\\x5fclass\\x5f\\x5f') }}"}]},
    "template-code",
    "CVE-2024-56326",
    "tokenizer_config.json",
)
settings("template_file", b"{{ cycler.__init__.__globals__.os.getcwd() }}", "template-code", "CVE-2026-5760", "c.jinja")
settings("yaml_objects", b"a: !!python/object/apply:os.getcwd []", "yaml-code", "CVE-2020-14343", "config.yaml")
settings("template_loop", b"{% for i in range(10000000000) %}x{% endfor %}", "template-bomb", "CWE-834", "c.jinja")


_TEMPLATE = b"{{ lipsum.__globals__['os'].getcwd() }}"
_KEY = b"tokenizer.chat_template" + struct.pack("<IQ", 8, len(_TEMPLATE))
entered("gguf_template", "template-code", "CVE-2026-5760", b"GGUF" + bytes(100) + _KEY + _TEMPLATE, "model.gguf")
_OUTSIDE = b"junk/../../secret"
entered(
    "onnx_external",
    "path-traversal",
    "CVE-2022-25882, CVE-2024-27318",
    b"\x08\x07\x6a\x20\x0a\x08location\x12" + bytes([len(_OUTSIDE)]) + _OUTSIDE,
    "model.onnx",
)

# --- files ---


@sample("symlink-escape", "CVE-2026-27489, CVE-2026-34447")
def link_out(folder):
    (folder / "config.json").symlink_to("/etc/hostname")


@sample("symlink-escape", "CVE-2026-27489")
def linked_folder(folder):
    (folder / "onnx").symlink_to("/etc")


@sample("unreadable", "CWE-59")
def link_circle(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")


@sample("special-file", "CWE-67")
def named_pipe(folder):
    os.mkfifo(folder / "model.safetensors")


def program(name, content, file):
    """Enter an executable."""
    entered(name, "executable", "MITRE ATLAS AML.T0011.000; CWE-506", content, file)


program("elf", b"\x7fELF\x02\x01\x01" + bytes(60), "vocab.txt")
program("pe", b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0", "weights.dat")
program("mach_o", b"\xcf\xfa\xed\xfe" + bytes(60), "libmodel")
program("shell_script", b"#!/bin/sh\necho\n", "README")
program("shared_library", zlib.compress(b"x"), "ops.so")


entered("python_file", "python-file", "MITRE ATLAS AML.T0011.000", b"print('x')", "setup.py")


@sample("remote-code", "trust_remote_code")
def python_in_auto_map(folder):
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "modeling_x.Model"}}')
    (folder / "modeling_x.py").write_text("print('x')")
