#!/usr/bin/env python3
"""fa3.h in another language: its constants, structs and functions, made from the header.

    declarations.py LANGUAGE fa3.h                          prints the declarations
    declarations.py LANGUAGE fa3.h DECLARATIONS [LAYOUT]    writes them, and code that prints their layout

What the header does not say (how an error is thrown, a text read) is in the language's folder: the file *.in, whose
lines @constants@, @structs@ and @functions@ are replaced. What is not understood of the header is an error.
"""

import pathlib
import re
import sys
import textwrap
from collections import namedtuple

# ---- the header ----

Value = namedtuple("Value", "type name count")  # a field, a parameter or a result; count: of an array's elements, or ""
Enum = namedtuple("Enum", "name constants")  # name: "" of macros; constants: pairs of name and number
Struct = namedtuple("Struct", "name fields")
Function = namedtuple("Function", "name result parameters")
Header = namedtuple("Header", "says enums structs functions code")  # says: by name; code: without comments and macros

COMMENT = r"/\*(?:[^*]|\*(?!/))*\*/"
STATEMENT = re.compile(r"""\s*(?:
    FA3_API\ (?P<function>[^();]+)\((?P<parameters>[^()]*)\);
  | typedef\ struct\ (?P<struct>\w+)\ \{(?P<fields>[^{}]*)\}\ (?P=struct);
  | (?:typedef\ )?enum\ (?P<enum>\w+)\ \{(?P<constants>[^{}]*)\}(?:\ (?P=enum))?;
  | typedef\ struct\ CUstream_st\*\ fa3_stream;
  )\s*""", re.X)


def match(pattern, text):
    return re.fullmatch(pattern, text) or sys.exit(f"not understood: {text[:100]}")


def declared(text):
    """Values of `TYPE NAME, NAME[COUNT]`."""
    type, names = match(r"((?:const )?\w+\*?) (.+)", " ".join(text.split())).groups()
    return [Value(type, *match(r"(\w+)(?:\[(\w+)\])?", name).groups("")) for name in names.split(", ")]


def first_sentences(text):
    for comment, name in re.findall(rf"^({COMMENT})\n(?:FA3_API [\w* ]*[* ]|typedef struct )(fa3_\w+)[ (]", text, re.M):
        comment = re.sub(r"\s*\n \* ?", " ", comment[3:-2])
        yield name, re.sub("[:;]$", ".", re.match(r".*?[.?:;](?= |$)|.*", comment)[0])


def read(text):
    says = dict(first_sentences(text))
    text = re.sub(rf"^ *{COMMENT}\n| *{COMMENT}", "", text, flags=re.M)
    macros = re.findall(r"^#define (FA3_(?!VERSION|ABI|API|H\b)\w+(?<!_INIT) .*)$", text, re.M)
    macros = [match(r"(\w+) (\d+)", macro).groups() for macro in macros]
    text = re.sub(r'^#ifdef __cplusplus\n.*\n#endif$|^#(?:.*\\\n)*.*$', "", text, flags=re.M)
    code = re.sub(r"\n\s*\n+", "\n\n", re.sub(r" +$", "", text, flags=re.M)).strip()
    enums, structs, functions, position = [Enum("", macros)], [], [], 0
    while position < len(code):
        statement = STATEMENT.match(code, position) or sys.exit(f"not understood: {code[position:][:100]}")
        position = statement.end()
        if statement["function"]:
            [result] = declared(statement["function"])
            parameters = [] if statement["parameters"] == "void" else statement["parameters"].split(",")
            functions.append(Function(result.name, result.type, [declared(part)[0] for part in parameters]))
        elif statement["struct"]:
            fields = [field for part in statement["fields"].split(";")[:-1] for field in declared(part)]
            structs.append(Struct(statement["struct"], fields))
        elif statement["enum"]:
            constants = [match(r"(\w+) = (\d+)", part.strip()).groups() for part in statement["constants"].split(",")]
            enums.append(Enum(statement["enum"], constants))
    return Header(says, enums, structs, functions, code)


# ---- for all languages ----


def bare(name):
    return name.lower().replace("fa3_", "", 1)


def is_address(type):
    return type.endswith("*") or type == "fa3_stream"


def mode(type):
    """How a language that has references passes what C passes by its address; "" for values and memory."""
    if type in ("void*", "const void*", "const char*") or not type.endswith("*"):
        return ""
    return "in" if type.startswith("const ") else "out" if type == "size_t*" else "in out"


def pointed(type):
    return type.replace("const ", "").rstrip("*")


def note(says, first, following, end=""):
    return textwrap.wrap(says + end, 118, initial_indent=first, subsequent_indent=following) if says else []


def wrapped(start, items, end, indent):
    """On one line, or, where that is too long, on one for each item."""
    line = f"{indent}{start}{', '.join(items)}{end}"
    return [line] if len(line) <= 110 else [indent + start, *(f"{indent}    {i}," for i in items), indent + end]


# ---- languages: each gives what replaces the lines @...@ of its *.in, and the program of the layout ----


def ada(header):
    types = {"int": "C.int", "int32_t": "Integer_32", "int64_t": "Integer_64", "uint64_t": "Unsigned_64",
             "size_t": "C.size_t", "float": "IEEE_Float_32"}
    initial = {"IEEE_Float_32": " := 0.0", "System.Address": " := System.Null_Address", "Tensor": ""}
    capitals = "ABI BF16 CUDA DK DQ DV E4M3 E5M2 FP16 FP32 KV LSE OK".split()

    def named(name):
        words = bare(name).split("_")
        return "_".join(word.upper() if word.upper() in capitals else word.capitalize() for word in words)

    def typed(type):
        if is_address(type) and not mode(type):
            return "System.Address"
        return types.get(pointed(type)) or named(pointed(type))

    def member(field):
        if (field.type, field.count) == ("int64_t", "FA3_MAX_RANK"):
            return "Numbers := (others => 0)"
        if field.count:
            return {"char": f"C.char_array (0 .. {int(field.count) - 1}) := (others => C.nul)"}[field.type]
        return typed(field.type) + initial.get(typed(field.type), " := 0")

    def passed(parameter):  # a parameter cannot be called as its type is
        name, type = named(parameter.name), typed(parameter.type)
        return f"{'Item' if name == type else name} : {mode(parameter.type)} {type}".replace(":  ", ": ")

    constants, structs, functions = [], [], []
    for enum in header.enums:
        kind = "Unsigned_64 " if enum.name.endswith("_flags") else "Integer_32 " if enum.name else ""
        kind = "Status " if enum.name == "fa3_status" else kind
        constants += [f"   {named(name)} : constant {kind}:= {number};" for name, number in enum.constants] + [""]
    for struct in header.structs:
        structs += note(header.says.get(struct.name), "   --  ", "   --  ")
        structs += [f"   type {named(struct.name)} is record"]
        structs += [f"      {named(field.name)} : {member(field)};" for field in struct.fields]
        structs += ["   end record with Convention => C;", ""]
    for function in header.functions:
        parameters = "; ".join(map(passed, function.parameters))
        result = "C.Strings.chars_ptr" if function.result == "const char*" else typed(function.result)
        functions += note(header.says.get(function.name), "   --  ", "   --  ")
        functions += [f"   function {named(function.name)}", *([f"     ({parameters})"] if parameters else []),
                      f"      return {result}",
                      f'      with Import, Convention => C, External_Name => "{function.name}";', ""]
    layout = ["with Ada.Text_IO; use Ada.Text_IO;", "with Fa3;         use Fa3;", "", "procedure Layout is", "begin"]
    for struct in header.structs:
        name = named(struct.name)
        layout += ["   declare", f"      A : Fa3.{name};", "   begin",
                   f"""      Put_Line ("struct {struct.name}" & Integer'Image (Fa3.{name}'Size / 8));"""]
        for field in struct.fields:
            item = f"A.{named(field.name)}"
            layout += [f'      Put_Line ("field {struct.name} {field.name}"',
                       f"                & Integer'Image ({item}'Position) & Integer'Image ({item}'Size / 8));"]
        layout.append("   end;")
    layout += [f"""   Put_Line ("const {name}" & Integer'Image (Integer (Fa3.{named(name)})));"""
               for enum in header.enums for name, _ in enum.constants]
    return {"constants": constants, "structs": structs, "functions": functions}, [*layout, "end Layout;"]


def fortran(header):
    types = {"int": "integer(c_int)", "fa3_status": "integer(c_int)", "int32_t": "integer(c_int32_t)",
             "int64_t": "integer(c_int64_t)", "uint64_t": "integer(c_int64_t)", "size_t": "integer(c_size_t)",
             "float": "real(c_float)", "char": "character(kind=c_char)"}

    def typed(type):
        if is_address(type) and not mode(type):
            return "type(c_ptr)"
        return types.get(pointed(type)) or f"type({pointed(type)})"

    def member(field):
        initial = {"type(c_ptr)": " = c_null_ptr", types["char"]: " = c_null_char", "type(fa3_tensor)": ""}
        count = f"({field.count})" if field.count else ""
        return f"{typed(field.type)} :: {field.name}{count}{initial.get(typed(field.type), ' = 0')}"

    def passed(parameter):
        how = f"intent({mode(parameter.type).replace(' ', '')})" if mode(parameter.type) else "value"
        return f"{typed(parameter.type)}, {how} :: {parameter.name}"

    constants, structs, functions = [], [], []
    for enum in header.enums:
        kind = "integer(c_int64_t)" if enum.name.endswith("_flags") else "integer(c_int)" if enum.name else "integer"
        constants += [f"  {kind}, parameter :: {name} = {number}" for name, number in enum.constants] + [""]
    for struct in header.structs:
        structs += note(header.says.get(struct.name), "  !> ", "  !> ") + [f"  type, bind(c) :: {struct.name}"]
        structs += [f"    {member(field)}" for field in struct.fields] + ["  end type", ""]
    for function in header.functions:
        names = ", ".join(parameter.name for parameter in function.parameters)
        functions += note(header.says.get(function.name), "    !> ", "    !> ")
        functions += [f"    {typed(function.result)} function {function.name}({names}) bind(c)", "      import"]
        functions += [f"      {passed(parameter)}" for parameter in function.parameters] + ["    end function"]
    layout = ["module layout", "  use fa3", "  implicit none", "  private", "  public :: print_layout", "contains",
              "  subroutine print_layout()", "    integer(c_intptr_t) :: start"]
    for struct in header.structs:
        layout += ["    block", f"      type({struct.name}), target :: a", "      start = transfer(c_loc(a), start)",
                   f"      print '(a, 1x, i0)', 'struct {struct.name}', c_sizeof(a)"]
        for field in struct.fields:
            layout += [f"      print '(a, 2(1x, i0))', 'field {struct.name} {field.name}', &",
                       f"        transfer(c_loc(a%{field.name}), start) - start, c_sizeof(a%{field.name})"]
        layout.append("    end block")
    layout += [f"    print '(a, 1x, i0)', 'const {name}', {name}" for e in header.enums for name, _ in e.constants]
    layout += ["  end subroutine", "end module"]
    return {"constants": constants, "structs": structs, "functions": functions}, layout


def java(header):
    """Its layout is printed by Layout.java, which asks the class."""
    types = {"int": ("JAVA_INT", "int"), "int32_t": ("JAVA_INT", "int"), "fa3_status": ("JAVA_INT", "int"),
             "int64_t": ("JAVA_LONG", "long"), "uint64_t": ("JAVA_LONG", "long"), "size_t": ("JAVA_LONG", "long"),
             "float": ("JAVA_FLOAT", "float"), "char": ("JAVA_BYTE", "byte")}

    def typed(type):
        if is_address(type):
            return "ADDRESS", "Struct" if mode(type) else "MemorySegment"
        return types.get(type) or (bare(type).upper(), "Struct")

    def camel(name):
        return re.sub(r"_(\w)", lambda letter: letter[1].upper(), bare(name))

    def member(field):
        layout = typed(field.type)[0]
        return f'{f"sequenceLayout({field.count}, {layout})" if field.count else layout}.withName("{field.name}")'

    constants, structs, handles, functions = [], [], [], []
    for enum in header.enums:
        constants += [f"  public static final int {name} = {number};" for name, number in enum.constants] + [""]
    for struct in header.structs:
        structs += note(header.says.get(struct.name), "  /** ", "   * ", " */")
        structs += [f"  public static final StructLayout {bare(struct.name).upper()} = structLayout("]
        structs += [",\n".join(f"      {member(field)}" for field in struct.fields) + ")"]
        structs += [f'      .withName("{struct.name}");', ""]
    for function in header.functions:
        handle = bare(function.name).upper()
        signature = ", ".join(typed(type)[0] for type in (function.result, *(p.type for p in function.parameters)))
        handles += [f"  private static final MethodHandle {handle} ="]
        handles += [f'      function("{function.name}", {signature});']
        asks = [(parameter.type, parameter.name) for parameter in function.parameters[-1:]] == [("size_t*", "bytes")]
        parameters = function.parameters[:-1] if asks else function.parameters
        types_and_names = ", ".join(f"{typed(p.type)[1]} {camel(p.name)}" for p in parameters)
        values = [camel(p.name) + ".memory" * (typed(p.type)[1] == "Struct") for p in parameters] + ["bytes"] * asks
        cast = "MemorySegment" if is_address(function.result) else "int"
        call = f"() -> ({cast}) {handle}.invokeExact({', '.join(values)})"
        result, statement = {
            "fa3_status": ("long", f"return size(bytes -> {call})") if asks else ("void", f"check({call})"),
            "int": ("int", f"return Fa3.<Integer>call({call})"),
            "const char*": ("String", f"return text({call})"),
        }[function.result]
        functions += ["", *note(header.says.get(function.name), "  /** ", "   * ", " */")]
        functions += [f"  public static {result} {camel(function.name)}({types_and_names}) {{"]
        functions += [f"    {statement};", "  }"]
    return {"constants": constants, "structs": structs, "functions": handles + functions}, None


def lua(header):
    """Its ffi reads C, though neither comments of ours nor macros. It tells where a field begins, not its size."""
    constants = [f"enum {{ {', '.join(f'{name} = {number}' for name, number in header.enums[0].constants)} }};"]
    layout = textwrap.dedent("""\
        local ffi = require("ffi")
        local fa3 = require("fa3")

        local function struct(name, fields) -- without padding a field ends where the next one begins
          print("struct " .. name .. " " .. ffi.sizeof(name))
          for i, field in ipairs(fields) do
            local start = ffi.offsetof(name, field)
            local stop = fields[i + 1] and ffi.offsetof(name, fields[i + 1]) or ffi.sizeof(name)
            print("field " .. name .. " " .. field .. " " .. start .. " " .. stop - start)
          end
        end
        """).splitlines()
    for struct in header.structs:
        layout += wrapped(f'struct("{struct.name}", {{ ', [f'"{field.name}"' for field in struct.fields], " })", "")
    layout += [f'print("const {name} " .. tonumber(fa3.lib.{name}))' for e in header.enums for name, _ in e.constants]
    return {"constants": constants, "structs": header.code.replace("FA3_API ", "").splitlines()}, layout


def rust(header):
    types = {"int": "c_int", "int32_t": "i32", "int64_t": "i64", "uint64_t": "u64", "size_t": "usize", "float": "f32",
             "char": "c_char", "void": "c_void"}

    def typed(type):
        pointer = "*const " if type.startswith("const ") else "*mut " if type.endswith("*") else ""
        return pointer + types.get(pointed(type), pointed(type))

    def member(field):
        return f"{field.name}: {f'[{typed(field.type)}; {field.count}]' if field.count else typed(field.type)}"

    constants, structs, functions = [], [], []
    for enum in header.enums:
        kind = "u64" if enum.name.endswith("_flags") else enum.name or "usize"
        constants += [f"pub type {kind} = c_int;"] if kind == enum.name else []
        constants += [f"pub const {name}: {kind} = {number};" for name, number in enum.constants] + [""]
    for struct in header.structs:
        sized = any(field.name == "struct_size" for field in struct.fields)
        fresh = "Self { struct_size: std::mem::size_of::<Self>(), ..unsafe { std::mem::zeroed() } }"
        structs += note(header.says.get(struct.name), "/// ", "/// ")
        structs += ["#[repr(C)]", "#[derive(Clone, Copy, Debug)]", f"pub struct {struct.name} {{"]
        structs += [f"    pub {member(field)}," for field in struct.fields] + ["}"]
        structs += [f"impl Default for {struct.name} {{", "    fn default() -> Self {"]
        structs += [f"        {fresh if sized else 'unsafe { std::mem::zeroed() }'}", "    }", "}", ""]
    for function in header.functions:
        functions += note(header.says.get(function.name), "    /// ", "    /// ")
        functions += wrapped(f"pub fn {function.name}(", list(map(member, function.parameters)),
                             f") -> {typed(function.result)};", "    ")
    layout = ["use crate::fa3_sys::*;", "use std::mem::size_of_val;", "", "pub fn print() {"]
    for struct in header.structs:
        layout += [f"    let a = {struct.name}::default();", "    let start = &a as *const _ as usize;",
                   f'    println!("struct {struct.name} {{}}", size_of_val(&a));']
        for field in struct.fields:
            layout += [f'    println!("field {struct.name} {field.name} {{}} {{}}",',
                       f"             &a.{field.name} as *const _ as usize - start, size_of_val(&a.{field.name}));"]
    layout += [f'    println!("const {name} {{}}", {name});' for enum in header.enums for name, _ in enum.constants]
    return {"constants": constants, "structs": structs, "functions": functions}, [*layout, "}"]


LANGUAGES = {"ada": ada, "fortran": fortran, "java": java, "lua": lua, "rust": rust}


def main():
    if len(sys.argv) not in (3, 4, 5) or sys.argv[1] not in LANGUAGES:
        sys.exit(f"{__doc__}\nLanguages: {' '.join(LANGUAGES)}")
    language, header, outputs = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    parts, layout = LANGUAGES[language](read(header.read_text()))
    [template] = (pathlib.Path(__file__).parent / language).glob("*.in")
    text = re.sub(r"^@(\w+)@$", lambda line: "\n".join(parts[line[1]]).strip("\n"), template.read_text(), flags=re.M)
    if not outputs:
        sys.stdout.write(text)
    for output, content in zip(outputs, (text, "\n".join([*(layout or []), ""]))):
        pathlib.Path(output).write_text(content)


if __name__ == "__main__":
    main()
