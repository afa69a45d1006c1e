package interpret

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// machine judges one packet as nft_do_chain (net/netfilter/nf_tables_core.c) does, with the
// expressions that package nftables writes. It returns an error for any other expression.
type machine struct {
	kernel             *Kernel
	packet             Packet
	network, transport []byte
	// registers are the 64 bytes of struct nft_regs.
	registers [64]byte
	// mark is the packet's mark. It begins at 0, because the stamp's table has cleared our bit.
	mark uint32
	// added holds the keys that rules added to sets, each prefixed with the name of its set.
	added map[string]bool
	depth int
	// denial is the rule that sent the packet to a chain that drops.
	denial   string
	decision Decision
}

// maxDepth bounds nested chains (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

// chain judges by a chain. final reports whether the packet was accepted or dropped. Otherwise the
// packet continues after the rule that jumped here.
func (m *machine) chain(name string) (final bool, err error) {
	if m.depth++; m.depth > maxDepth {
		return false, fmt.Errorf("chain %s: more than %d chains call each other", name, maxDepth)
	}
	defer func() { m.depth-- }()

	rules, err := m.kernel.rulesOf(name)
	if err != nil {
		return false, err
	}
	for i, r := range rules {
		text, ours := textOf(r)
		if !ours {
			return false, fmt.Errorf("another program wrote rule %d of chain %s", i+1, name)
		}
		verdict, err := m.rule(r.Exprs)
		if err != nil {
			return false, fmt.Errorf("chain %s, rule %q: %w", name, text, err)
		}
		if verdict == nil {
			continue
		}

		switch verdict.Kind {
		case expr.VerdictJump:
			if final, err := m.chain(verdict.Chain); final || err != nil {
				return final, err
			}
			continue
		case expr.VerdictGoto:
			if slices.Contains(policy.DropReasons, verdict.Chain) {
				m.denial = name + ": " + text
			}
			return m.chain(verdict.Chain)
		}
		m.decision.Rule = cmp.Or(m.denial, name+": "+text)
		switch verdict.Kind {
		case expr.VerdictReturn:
			return false, nil
		case expr.VerdictAccept:
			return true, nil
		case expr.VerdictDrop:
			deny, ok := counterOf(r.Exprs)
			if !ok {
				return false, fmt.Errorf("chain %s, rule %q drops without a counter", name, text)
			}
			m.decision.Verdict = deny
			return true, nil
		}
		return false, fmt.Errorf("chain %s, rule %q has verdict %d", name, text, verdict.Kind)
	}
	return false, nil
}

// rule returns the verdict of a rule, or nil if the packet does not match or the rule has no
// verdict.
func (m *machine) rule(exprs []expr.Any) (*expr.Verdict, error) {
	for _, e := range exprs {
		matches := true
		var err error
		switch e := e.(type) {
		case *expr.Verdict:
			return e, nil
		case *expr.Meta:
			err = m.meta(e)
		case *expr.Payload:
			matches, err = m.payload(e)
		case *expr.Ct:
			err = m.conntrack(e)
		case *expr.Dynset:
			err = m.dynset(e)
		case *expr.Bitwise:
			err = m.bitwise(e)
		case *expr.Cmp:
			matches, err = m.compare(e)
		case *expr.Range:
			at, bad := m.at(e.Register, len(e.FromData))
			err = bad
			matches = err == nil && len(e.ToData) == len(at) && (e.Op == expr.CmpOpEq) ==
				(bytes.Compare(at, e.FromData) >= 0 && bytes.Compare(at, e.ToData) <= 0)
		case *expr.Lookup:
			matches, err = m.lookup(e)
		case *expr.Objref, *expr.Counter, *expr.Log, *expr.Limit:
			// These do not change the verdict. The packet counts as within the limit.
		default:
			err = fmt.Errorf("expression %T is not known", e)
		}
		if err != nil || !matches {
			return nil, err
		}
	}
	return nil, nil
}

// from returns the bytes from a register on, by either numbering of include/uapi. Registers 1 to 4
// have 16 bytes each. Registers from 8 on have 4 bytes each of the same memory.
func (m *machine) from(register uint32) ([]byte, error) {
	switch {
	case register >= unix.NFT_REG_1 && register <= unix.NFT_REG_4:
		return m.registers[(register-unix.NFT_REG_1)*16:], nil
	case register >= unix.NFT_REG32_00 && register <= unix.NFT_REG32_15:
		return m.registers[(register-unix.NFT_REG32_00)*4:], nil
	}
	return nil, fmt.Errorf("register %d is not known", register)
}

// at returns size bytes from a register on.
func (m *machine) at(register uint32, size int) ([]byte, error) {
	from, err := m.from(register)
	if err == nil && size > len(from) {
		err = fmt.Errorf("register %d has no %d bytes", register, size)
	}
	if err != nil {
		return nil, err
	}
	return from[:size], nil
}

// set writes a register, and zeros up to the end of the last 4 bytes.
func (m *machine) set(register uint32, data []byte) error {
	to, err := m.at(register, (len(data)+3)/4*4)
	if err != nil {
		return err
	}
	clear(to)
	copy(to, data)
	return nil
}

func (m *machine) meta(e *expr.Meta) error {
	if e.SourceRegister {
		data, err := m.at(e.Register, 4)
		if err == nil && e.Key != expr.MetaKeyMARK {
			err = fmt.Errorf("it sets metadata %d", e.Key)
		}
		if err == nil {
			m.mark = binaryutil.NativeEndian.Uint32(data)
		}
		return err
	}

	number := func(n uint32) []byte { return binaryutil.NativeEndian.PutUint32(n) }
	group := func(pod, tunnel bool) []byte {
		switch {
		case pod:
			return number(abi.PodGroup)
		case tunnel:
			return number(abi.TunnelGroup)
		}
		return number(0)
	}
	const someLink = 1
	switch e.Key {
	case expr.MetaKeyNFPROTO:
		return m.set(e.Register, []byte{layoutOf(m.packet.Src).nfproto})
	case expr.MetaKeyL4PROTO:
		return m.set(e.Register, []byte{byte(m.packet.Proto)})
	case expr.MetaKeyMARK:
		return m.set(e.Register, number(m.mark))
	case expr.MetaKeyIIF:
		if m.packet.FromNode {
			return m.set(e.Register, number(0))
		}
		return m.set(e.Register, number(someLink))
	case expr.MetaKeyOIF:
		if m.packet.ToNode {
			return m.set(e.Register, number(0))
		}
		return m.set(e.Register, number(someLink))
	case expr.MetaKeyIIFGROUP:
		return m.set(e.Register, group(m.packet.FromPod, m.packet.FromTunnel))
	case expr.MetaKeyOIFGROUP:
		return m.set(e.Register, group(m.packet.ToPod, false))
	}
	return fmt.Errorf("meta %d is not known", e.Key)
}

// payload loads from a header; it does not match where the header is too short.
func (m *machine) payload(e *expr.Payload) (bool, error) {
	var header []byte
	switch {
	case e.OperationType != expr.PayloadLoad:
		return false, fmt.Errorf("it writes to the packet")
	case e.Base == expr.PayloadBaseNetworkHeader:
		header = m.network
	case e.Base == expr.PayloadBaseTransportHeader:
		header = m.transport
	default:
		return false, fmt.Errorf("header %d is not known", e.Base)
	}
	if int(e.Offset)+int(e.Len) > len(header) {
		return false, nil
	}
	return true, m.set(e.DestRegister, header[e.Offset:e.Offset+e.Len])
}

// conntrack loads the state of a connection's first packet, or of an error about a connection.
func (m *machine) conntrack(e *expr.Ct) error {
	if e.SourceRegister || e.Key != expr.CtKeySTATE {
		return fmt.Errorf("ct %d is not known", e.Key)
	}
	state := uint32(expr.CtStateBitNEW)
	if m.packet.Quotes.IsValid() {
		state = expr.CtStateBitRELATED
	}
	return m.set(e.Register, binaryutil.NativeEndian.PutUint32(state))
}

// dynset adds the key in a register to a set, for this packet.
func (m *machine) dynset(e *expr.Dynset) error {
	s := m.kernel.sets[e.SetName]
	if s == nil {
		return fmt.Errorf("set %s does not exist", e.SetName)
	}
	data, err := m.at(e.SrcRegKey, int(s.KeyType.Bytes))
	if err == nil && m.added == nil {
		m.added = map[string]bool{}
	}
	if err == nil {
		m.added[e.SetName+"\x00"+string(data)] = true
	}
	return err
}

func (m *machine) bitwise(e *expr.Bitwise) error {
	from, err := m.at(e.SourceRegister, int(e.Len))
	if err != nil {
		return err
	}
	if len(e.Mask) != len(from) || len(e.Xor) != len(from) {
		return fmt.Errorf("a bitwise operation without mask is not known")
	}
	out := make([]byte, len(from))
	for i := range from {
		out[i] = from[i]&e.Mask[i] ^ e.Xor[i]
	}
	return m.set(e.DestRegister, out)
}

func (m *machine) compare(e *expr.Cmp) (bool, error) {
	have, err := m.at(e.Register, len(e.Data))
	switch {
	case err != nil:
		return false, err
	case e.Op == expr.CmpOpEq:
		return bytes.Equal(have, e.Data), nil
	case e.Op == expr.CmpOpNeq:
		return !bytes.Equal(have, e.Data), nil
	}
	return false, fmt.Errorf("comparison %d is not known", e.Op)
}

func (m *machine) lookup(e *expr.Lookup) (bool, error) {
	if e.IsDestRegSet {
		return false, fmt.Errorf("it looks up a map")
	}
	data, err := m.from(e.SourceRegister)
	if err != nil {
		return false, err
	}
	s, err := m.kernel.setOf(e.SetName)
	if err != nil {
		return false, err
	}
	found := s.has(data)
	if s.Dynamic {
		found = found || m.added[e.SetName+"\x00"+string(data[:s.KeyType.Bytes])]
	}
	return found != e.Invert, nil
}
