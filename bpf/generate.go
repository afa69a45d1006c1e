package bpf

// The compiler is pinned: another version may compile other bytes. See ClangVersion. The programs
// of services need atomic operations that return the old value, which version 3 of the instruction
// set has (Linux 5.12).
//
//go:generate go run ./gen
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf GuardIngress progs/guard_ingress.c -- -O2 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf GuardEgress progs/guard_egress.c -- -O2 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf ServiceSocket progs/service_socket.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf ServicePacket progs/service_packet.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib

// ClangVersion is the major version of the compiler of the committed objects.
const ClangVersion = "14"
