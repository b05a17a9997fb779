import java.lang.foreign.MemoryLayout;
import java.lang.foreign.StructLayout;
import java.lang.reflect.Field;

/** The layout of all structs and constants of Fa3, to be compared with the header's. */
final class Layout {
  static void print() throws IllegalAccessException {
    for (Field field : Fa3.class.getFields()) {
      if (field.getType() == int.class) System.out.println("const " + field.getName() + " " + field.getInt(null));
      if (field.getType() == StructLayout.class) print((StructLayout) field.get(null));
    }
  }

  private static void print(StructLayout layout) {
    String struct = layout.name().orElseThrow();
    System.out.println("struct " + struct + " " + layout.byteSize());
    for (MemoryLayout member : layout.memberLayouts()) {
      String name = member.name().orElseThrow();
      long offset = layout.byteOffset(MemoryLayout.PathElement.groupElement(name));
      System.out.println("field " + struct + " " + name + " " + offset + " " + member.byteSize());
    }
  }
}
