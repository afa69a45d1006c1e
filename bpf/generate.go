package bpf

// The compiler is pinned: another version may give other bytes. See ClangVersion. The table's
// programs need atomic operations that give the old value, which version 3 of the instructions has
// (Linux 5.12).
//
//go:generate go run ./gen
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf GuardIngress progs/guard_ingress.c -- -O2 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf GuardEgress progs/guard_egress.c -- -O2 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf ServiceSocket progs/service_socket.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -go-package bpf ServicePacket progs/service_packet.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wshadow -Iinclude -Ilib

// ClangVersion is the major version of the compiler that the committed objects
// are from.
const ClangVersion = "14"
