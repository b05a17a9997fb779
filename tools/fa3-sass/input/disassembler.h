// Where nvdisasm and cuobjdump are.
#pragma once

#include <string>
#include <vector>

namespace sass {

// The places looked at, in order: PATH, CUDA_HOME and CUDA_PATH, the toolkit's usual folder, the pip wheels
// nvidia-cuda-nvdisasm and nvidia-cuda-cuobjdump beside this program, in an active virtual environment, beside any
// python3 on PATH, or in the project's own .toolchain (above the current folder or above this program), and the toolkit
// of this build.
std::vector<std::string> tool_folders();

// Throws std::runtime_error that names every place and how to get the tool.
std::string find_tool(const std::string& tool, const std::vector<std::string>& folders = tool_folders());

}  // namespace sass
