"""Malicious files, one for each class that was made public; what they would run is ``os.getcwd`` or ``print``.

A sample is a function that writes files into a folder, with the rule that has to find it and where it was published.
"""

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib

SAMPLES = {}


def sample(rule, published):
    """Enter a sample under its function's name."""

    def enter(make):
        SAMPLES[make.__name__] = (make, rule, published)
        return make

    return enter


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


def call(module, name):
    """Steps that import a function by STACK_GLOBAL and call it without arguments."""
    return text(module) + text(name) + b"\x93" + b")R"


CODE = pickle.dumps(Runs(os.getcwd))
PLAIN = pickle.dumps({"a": 1})


def zipped(entries, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name) if isinstance(name, str) else name, content, compression)
    return stream.getvalue()


def checkpoint(content=CODE):
    return zipped([("archive/data.pkl", content), ("archive/version", b"3\n"), ("archive/data/0", bytes(64))])


def safetensors(header, data=b"", size=None):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(content) if size is None else size) + content + data


def tensor(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# --- pickles ---


@sample("pickle-code", "the class itself: MITRE ATLAS AML.T0011.000")
def pickle_that_calls(folder):
    (folder / "pytorch_model.bin").write_bytes(CODE)


@sample("pickle-code", "CVE-2025-32434, CVE-2026-24747: torch.load")
def checkpoint_that_calls(folder):
    (folder / "pytorch_model.bin").write_bytes(checkpoint())


@sample("pickle-code", "picklescan issue 13: INST is not looked at")
def call_by_inst(folder):
    (folder / "model.pkl").write_bytes(b"(S'eval'\nios\ngetcwd\n.")


@sample("pickle-code", "CWE-502: OBJ calls without REDUCE")
def call_by_obj(folder):
    (folder / "model.pkl").write_bytes(b"(cos\ngetcwd\no.")


@sample("pickle-code", "picklescan issue 14: the memo by PUT and by MEMOIZE")
def confused_memo(folder):
    steps = (
        text("os") + b"q\x00" + text("getcwd") + b"q\x01" + text("torch._utils") + b"\x94" + text("_rebuild") + b"\x94",
        b"h\x00h\x01\x93)R",
    )
    (folder / "model.pkl").write_bytes(assembled(*steps))


@sample("pickle-code", "picklescan issue 22: a memo that does not look at its argument")
def memo_out_of_order(folder):
    steps = text("collections") + b"q\x05" + text("os") + b"q\x00" + text("getcwd") + b"q\x09h\x00h\x09\x93)R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "CVE-2025-1716: pip.main is on no list")
def pip_main(folder):
    (folder / "model.pkl").write_bytes(assembled(call("pip", "main")))


@sample("pickle-code", "GHSA-vvpj-8cmc-gx39: pkgutil.resolve_name reaches every function")
def resolve_name(folder):
    steps = text("pkgutil") + text("resolve_name") + b"\x93" + text("os:getcwd") + b"\x85R)R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "picklescan issue 66: importlib and attribute chains")
def import_module(folder):
    steps = text("importlib") + text("import_module") + b"\x93" + text("os") + b"\x85R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "CVE-2025-10157: a submodule of a dangerous module")
def asyncio_submodule(folder):
    (folder / "model.pkl").write_bytes(assembled(call("asyncio.unix_events", "_UnixSubprocessTransport._start")))


@sample("pickle-code", "CVE-2026-56315: uuid and others of the standard library")
def standard_library(folder):
    (folder / "model.pkl").write_bytes(assembled(call("uuid", "_get_command_stdout")))


@sample("pickle-code", "GHSA-xp4f-hrf8-rxw7: ensurepip._run_pip")
def ensurepip(folder):
    (folder / "model.pkl").write_bytes(assembled(call("ensurepip", "_run_pip")))


@sample("pickle-code", "CVE-2025-71373: operator.methodcaller")
def method_caller(folder):
    (folder / "model.pkl").write_bytes(assembled(call("_operator", "methodcaller")))


@sample("pickle-code", "GHSA-84r2-jw7c-4r5q: pydoc.locate finds every module")
def pydoc_locate(folder):
    steps = text("pydoc") + text("locate") + b"\x93" + text("os") + b"\x85R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "GHSA-m273-6v24-x4m4: distutils.file_util.write_file writes files")
def write_file(folder):
    steps = text("distutils.file_util") + text("write_file") + b"\x93" + text("made") + b"]\x86R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "GHSA-9gvj-pp9x-gcfr: the name of a module in the first step")
def name_in_the_first_step(folder):
    (folder / "model.pkl").write_bytes(b"S'os'\nS'getcwd'\n\x93)R.")


@sample("pickle-code", "CVE-2026-56304: logging.FileHandler makes files")
def file_handler(folder):
    steps = text("logging") + text("FileHandler") + b"\x93" + text("made") + b"\x85R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "fickling GHSA-mhc9-48gj-9gp3: a result that BUILD keeps")
def subinterpreter(folder):
    (folder / "model.pkl").write_bytes(assembled(text("_interpreters") + text("create") + b"\x93)R}b"))


@sample("pickle-code", "fickling CVE-2025-67748: pty.spawn")
def pty_spawn(folder):
    (folder / "model.pkl").write_bytes(b"(cpty\nspawn\nS'id'\no.")


@sample("pickle-code", "fickling CVE-2026-22612: imports of builtins")
def builtins_eval(folder):
    steps = text("builtins") + text("eval") + b"\x93" + text("print(1)") + b"\x85R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "fickling GHSA-mxhj-88fx-4pcv: a call whose result is popped")
def popped_call(folder):
    (folder / "model.pkl").write_bytes(assembled(call("os", "getcwd"), b"0N"))


@sample("pickle-import", "CVE-2025-71372: numpy.f2py.crackfortran evaluates its arguments")
def numpy_gadget(folder):
    (folder / "model.pkl").write_bytes(assembled(call("numpy.f2py.crackfortran", "getlincoef")))


@sample("pickle-import", "modelscan issue 311: torch.utils.bottleneck and other gadgets of torch")
def torch_gadget(folder):
    (folder / "model.pkl").write_bytes(assembled(call("torch.utils.bottleneck.__main__", "run_cprofile")))


@sample("pickle-code", "CWE-502: a name that is made while the pickle runs")
def computed_name(folder):
    steps = text("os") + text("getcwd") + b"\x85\x93)R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "CWE-502: the registry of extensions")
def extension_registry(folder):
    (folder / "model.pkl").write_bytes(assembled(b"\x82\x01)R"))


@sample("pickle-code", "CWE-915: attributes of an imported class are set by BUILD")
def changed_class(folder):
    steps = text("torch.nn.parameter") + text("Parameter") + b"\x93N}" + text("__new__") + b"Ns\x86b"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "nullifAI (ReversingLabs): a stream that breaks behind its payload")
def broken_stream(folder):
    (folder / "pytorch_model.bin").write_bytes(assembled(call("os", "getcwd"), b"\xff\xff\xff"))


@sample("pickle-broken", "CWE-703: a stream that no parser follows")
def unparsable_stream(folder):
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}\x94\xfe")


@sample("pickle-code", "picklescan issue 24: a pickle in a pickle")
def nested_pickle(folder):
    steps = text("_pickle") + text("loads") + b"\x93C" + bytes([len(CODE)]) + CODE + b"\x85R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "CWE-502: bytes of a storage of torch, which torch.load reads")
def nested_storage(folder):
    steps = text("torch.storage") + text("_load_from_bytes") + b"\x93C" + bytes([len(CODE)]) + CODE + b"\x85R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-code", "CWE-502: the second pickle of a file")
def second_pickle(folder):
    (folder / "model.pkl").write_bytes(PLAIN + CODE)


@sample("pickle-code", "CWE-502: a second pickle, of another protocol")
def second_pickle_of_protocol_0(folder):
    (folder / "model.pkl").write_bytes(PLAIN + b"cos\ngetcwd\n(tR.")


@sample("pickle-code", "CVE-2025-32434: the old format of torch.save, code in its fourth pickle")
def legacy_checkpoint(folder):
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
    (folder / "old.pt").write_bytes(magic + CODE + pickle.dumps([], 2))


@sample("pickle-bomb", "CWE-789: an allocation of 100 TB")
def allocation(folder):
    steps = text("builtins") + text("bytearray") + b"\x93\x8a\x06" + (10**14).to_bytes(6, "little") + b"\x85R"
    (folder / "model.pkl").write_bytes(assembled(steps))


@sample("pickle-hidden", "CVE-2025-1889, CVE-2025-10155: a pickle by another ending")
def pickle_called_safetensors(folder):
    (folder / "model.safetensors").write_bytes(CODE)


@sample("pickle-hidden", "CVE-2025-1889: a pickle that calls itself JSON")
def pickle_called_json(folder):
    (folder / "config.json").write_bytes(b"cos\ngetcwd\n(tR.")


@sample("pickle-code", "CVE-2025-1889: a pickle by an ending that nobody knows")
def pickle_called_dat(folder):
    (folder / "weights.dat").write_bytes(CODE)


@sample("pickle-code", "CVE-2019-6446: an array of objects of numpy")
def numpy_objects(folder):
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    (folder / "vectors.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + CODE)


@sample("pickle-code", "CVE-2020-13092: joblib, compressed as it saves")
def compressed_pickle(folder):
    import gzip

    (folder / "head.joblib").write_bytes(gzip.compress(CODE))


# --- archives ---


def changed(content, offset, new):
    return content[:offset] + new + content[offset + len(new) :]


@sample("zip-hidden-flags", "CVE-2025-1945: flags that zipfile refuses and torch does not read")
def encrypted_flag(folder):
    content = checkpoint()
    content = changed(content, 6, b"\x01\x00")
    (folder / "model.pt").write_bytes(changed(content, content.index(b"PK\x01\x02") + 8, b"\x01\x00"))


@sample("pickle-code", "CVE-2025-1945: and what the flags hide")
def behind_encrypted_flag(folder):
    encrypted_flag(folder)


@sample("zip-names-differ", "CVE-2025-1944: another name in the header")
def another_name(folder):
    content = checkpoint()
    (folder / "model.pt").write_bytes(changed(content, 30, b"archive/dato.pkl"))


@sample("zip-wrong-checksum", "CVE-2025-10156: a wrong checksum")
def wrong_checksum(folder):
    content = checkpoint(PLAIN)
    content = changed(content, 14, b"\0\0\0\0")
    (folder / "model.pt").write_bytes(changed(content, content.index(b"PK\x01\x02") + 16, b"\0\0\0\0"))


@sample("pickle-code", "CVE-2025-10156: and what the checksum hides")
def behind_wrong_checksum(folder):
    content = checkpoint()
    content = changed(content, 14, b"\0\0\0\0")
    (folder / "model.pt").write_bytes(changed(content, content.index(b"PK\x01\x02") + 16, b"\0\0\0\0"))


@sample("zip-duplicate-entry", "CVE-2013-4787: two entries of one name")
def duplicate_entry(folder):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (folder / "model.pt").write_bytes(zipped([("a/data.pkl", PLAIN), ("a/data.pkl", PLAIN)]))


@sample("zip-traversal", "CVE-2018-1002200: Zip Slip")
def zip_slip(folder):
    (folder / "model.zip").write_bytes(zipped([("../../.bashrc", b"print")]))


@sample("zip-traversal", "CWE-61: a symbolic link in an archive")
def zip_link(folder):
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    (folder / "model.zip").write_bytes(zipped([(entry, b"/etc/passwd")]))


@sample("zip-bomb", "CWE-409: a thousandfold")
def deflate_bomb(folder):
    (folder / "model.pt").write_bytes(zipped([("a/data/0", bytes(80 * 2**20))], zipfile.ZIP_DEFLATED))


@sample("zip-bomb", "CVE-2024-0450: entries that overlap")
def overlapping_entries(folder):
    content = zipped([("a", b"x" * 100), ("b", b"x" * 100)])
    second = content.rindex(b"PK\x01\x02")
    (folder / "model.pt").write_bytes(changed(content, second + 42, struct.pack("<I", 0)))


@sample("zip-bomb", "CWE-409: archives in archives")
def nested_archives(folder):
    content = PLAIN
    for _ in range(8):
        content = zipped([("inner.zip", content)])
    (folder / "model.zip").write_bytes(content)


@sample("zip-hidden-bytes", "CWE-436: an archive behind an archive")
def concatenated_archives(folder):
    (folder / "model.pt").write_bytes(checkpoint(PLAIN) + checkpoint(PLAIN))


@sample("pickle-code", "CWE-436: a pickle with an archive behind it, which scanners read instead")
def pickle_before_archive(folder):
    (folder / "model.pt").write_bytes(CODE + checkpoint(PLAIN))


@sample("zip-broken", "CVE-2025-1944: an archive that zipfile cannot open")
def broken_archive(folder):
    (folder / "model.pt").write_bytes(checkpoint(PLAIN)[:-30])


@sample("archive-unread", "nullifAI (ReversingLabs): 7z instead of zip")
def seven_zip(folder):
    (folder / "pytorch_model.bin").write_bytes(b"7z\xbc\xaf'\x1c" + bytes(100))


@sample("torchscript", "CVE-2025-32434: a program where weights are expected")
def torch_script(folder):
    (folder / "model.pt").write_bytes(
        zipped([("m/data.pkl", PLAIN), ("m/code/__torch__.py", b"def f(): pass"), ("m/constants.pkl", PLAIN)])
    )


@sample("keras-code", "CVE-2025-1550: settings of Keras that import functions")
def keras_module(folder):
    config = {"class_name": "function", "module": "os", "config": "getcwd", "registered_name": "function"}
    (folder / "model.keras").write_bytes(zipped([("config.json", json.dumps(config))]))


@sample("keras-code", "CVE-2024-3660: a Lambda layer in HDF5")
def keras_lambda(folder):
    (folder / "tf_model.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(2**20) + b'{"class_name": "Lambda", "config": 1}')


@sample("zip-traversal", "CVE-2007-4559: a tar archive that leads out of its folder")
def tar_slip(folder):
    with tarfile.open(folder / "model.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../../made"))


# --- safetensors ---

_ONE = {"a": tensor(0, 4, [1])}


def lie(name, content, rule="safetensors-header"):
    """Enter a safetensors file whose header lies."""

    def make(folder):
        (folder / "model.safetensors").write_bytes(content)

    make.__name__ = name
    sample(rule, "Trail of Bits, Safetensors security assessment (2023)")(make)


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


@sample("safetensors-bomb", "Trail of Bits, Safetensors security assessment (2023): a header of 10 GB")
def huge_header(folder):
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 10**10) + b"{")
        file.truncate(10**10 + 8)  # a sparse file


# --- settings ---


def settings(name, content, rule, published, file="config.json"):
    """Enter a file of settings."""

    def make(folder):
        written = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / file).write_bytes(written)

    make.__name__ = name
    sample(rule, published)(make)


settings("auto_map", {"auto_map": {"AutoModel": "modeling.Evil"}}, "remote-code", "trust_remote_code")
settings("auto_map_elsewhere", {"auto_map": {"AutoModel": "evil/code--modeling.M"}}, "remote-code", "trust_remote_code")
settings("own_trust", {"sub": {"trust_remote_code": True}}, "remote-code", "CVE-2026-5241")
settings("remote_kernel", {"_attn_implementation_internal": "evil/kernel"}, "remote-kernel", "CVE-2026-4372")
settings("deep_json", b"[" * 200_000 + b"]" * 200_000, "json-bomb", "CWE-674")
settings("huge_integer", b'{"vocab_size": ' + b"1" * 100_000 + b"}", "json-bomb", "CVE-2020-10735")
settings("many_values", b"[" + b"[]," * 9_000_000 + b"[]]", "json-bomb", "CWE-770", "tokenizer.json")
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


@sample("template-code", "CVE-2026-5760: a template in GGUF")
def gguf_template(folder):
    template = b"{{ lipsum.__globals__['os'].getcwd() }}"
    key = b"tokenizer.chat_template" + struct.pack("<IQ", 8, len(template))
    (folder / "model.gguf").write_bytes(b"GGUF" + bytes(100) + key + template)


@sample("path-traversal", "CVE-2022-25882, CVE-2024-27318: tensors of ONNX outside the folder")
def onnx_external(folder):
    path = b"junk/../../secret"
    (folder / "model.onnx").write_bytes(b"\x08\x07\x6a\x20\x0a\x08location\x12" + bytes([len(path)]) + path)


# --- files ---


@sample("symlink-escape", "CVE-2026-27489, CVE-2026-34447: a link out of the folder")
def link_out(folder):
    (folder / "config.json").symlink_to("/etc/hostname")


@sample("symlink-escape", "CVE-2026-27489: a folder that is a link")
def linked_folder(folder):
    (folder / "onnx").symlink_to("/etc")


@sample("unreadable", "CWE-59: links in a circle")
def link_circle(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")


@sample("special-file", "CWE-67: a pipe that never ends")
def named_pipe(folder):
    os.mkfifo(folder / "model.safetensors")


def program(name, content, file):
    """Enter an executable."""

    def make(folder):
        (folder / file).write_bytes(content)

    make.__name__ = name
    sample("executable", "MITRE ATLAS AML.T0011.000; CWE-506")(make)


program("elf", b"\x7fELF\x02\x01\x01" + bytes(60), "vocab.txt")
program("pe", b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0", "weights.dat")
program("mach_o", b"\xcf\xfa\xed\xfe" + bytes(60), "libmodel")
program("shell_script", b"#!/bin/sh\necho\n", "README")
program("shared_library", zlib.compress(b"x"), "ops.so")


@sample("python-file", "MITRE ATLAS AML.T0011.000")
def python_file(folder):
    (folder / "setup.py").write_text("print('x')")


@sample("remote-code", "trust_remote_code: the code itself")
def python_in_auto_map(folder):
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "modeling_x.Model"}}')
    (folder / "modeling_x.py").write_text("print('x')")
