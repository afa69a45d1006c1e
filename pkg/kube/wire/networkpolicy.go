package wire

// NetworkPolicy is what is read of a NetworkPolicy (k8s.io.api.networking.v1.NetworkPolicy).
type NetworkPolicy struct {
	Meta
	PodSelector     LabelSelector
	Ingress, Egress []PolicyRule
	PolicyTypes     []string
	// Unknown reports whether the spec has a field that this version does not know. Without it
	// the policy may mean less than it says, and must not allow anything.
	Unknown bool
}

// LabelSelector is a LabelSelector of k8s.io/apimachinery.
type LabelSelector struct {
	MatchLabels      map[string]string
	MatchExpressions []Expression
}

// Expression is a LabelSelectorRequirement.
type Expression struct {
	Key, Operator string
	Values        []string
}

// PolicyRule is a rule of ingress or egress.
type PolicyRule struct {
	Ports []PolicyPort
	Peers []PolicyPeer
}

// PolicyPort is a NetworkPolicyPort. Pointers are nil where the object has no such field.
type PolicyPort struct {
	Protocol *string
	Port     *IntOrString
	EndPort  *int32
}

// IntOrString is a number, or with Type 1 a string.
type IntOrString struct {
	Type   int64
	IntVal int32
	StrVal string
}

// PolicyPeer is a NetworkPolicyPeer. Pointers are nil where the object has no such field.
type PolicyPeer struct {
	PodSelector, NamespaceSelector *LabelSelector
	IPBlock                        *IPBlock
}

// IPBlock is an IPBlock.
type IPBlock struct {
	CIDR   string
	Except []string
}

// NetworkPolicy reads a NetworkPolicy without its envelope.
func (r Reader) NetworkPolicy(message []byte) (p NetworkPolicy, err error) {
	err = each(message, func(f field) error {
		switch f.number {
		case 1:
			return r.meta(f, &p.Meta)
		case 2:
			return f.within(p.spec)
		}
		return nil
	})
	return p, err
}

func (p *NetworkPolicy) spec(f field) error {
	switch f.number {
	case 1:
		return p.selector(f, &p.PodSelector)
	case 2:
		return p.rule(f, &p.Ingress)
	case 3:
		return p.rule(f, &p.Egress)
	case 4:
		text, err := f.text()
		p.PolicyTypes = append(p.PolicyTypes, text)
		return err
	}
	p.Unknown = true
	return nil
}

func (p *NetworkPolicy) rule(rule field, to *[]PolicyRule) error {
	var r PolicyRule
	err := rule.within(func(f field) error {
		switch f.number {
		case 1:
			return p.port(f, &r.Ports)
		case 2:
			return p.peer(f, &r.Peers)
		}
		p.Unknown = true
		return nil
	})
	*to = append(*to, r)
	return err
}

func (p *NetworkPolicy) port(port field, to *[]PolicyPort) error {
	var out PolicyPort
	err := port.within(func(f field) error {
		switch f.number {
		case 1:
			text, err := f.text()
			out.Protocol = &text
			return err
		case 2:
			if out.Port == nil {
				out.Port = &IntOrString{}
			}
			return p.intOrString(f, out.Port)
		case 3:
			v, err := f.integer()
			end := int32(v)
			out.EndPort = &end
			return err
		}
		p.Unknown = true
		return nil
	})
	*to = append(*to, out)
	return err
}

func (p *NetworkPolicy) intOrString(value field, to *IntOrString) error {
	return value.within(func(f field) error {
		switch f.number {
		case 1:
			v, err := f.integer()
			to.Type = v
			return err
		case 2:
			v, err := f.integer()
			to.IntVal = int32(v)
			return err
		case 3:
			return f.set(&to.StrVal)
		}
		p.Unknown = true
		return nil
	})
}

func (p *NetworkPolicy) peer(peer field, to *[]PolicyPeer) error {
	var out PolicyPeer
	err := peer.within(func(f field) error {
		switch f.number {
		case 1:
			if out.PodSelector == nil {
				out.PodSelector = &LabelSelector{}
			}
			return p.selector(f, out.PodSelector)
		case 2:
			if out.NamespaceSelector == nil {
				out.NamespaceSelector = &LabelSelector{}
			}
			return p.selector(f, out.NamespaceSelector)
		case 3:
			if out.IPBlock == nil {
				out.IPBlock = &IPBlock{}
			}
			return p.block(f, out.IPBlock)
		}
		p.Unknown = true
		return nil
	})
	*to = append(*to, out)
	return err
}

func (p *NetworkPolicy) block(block field, to *IPBlock) error {
	return block.within(func(f field) error {
		switch f.number {
		case 1:
			return f.set(&to.CIDR)
		case 2:
			text, err := f.text()
			to.Except = append(to.Except, text)
			return err
		}
		p.Unknown = true
		return nil
	})
}

func (p *NetworkPolicy) selector(selector field, to *LabelSelector) error {
	return selector.within(func(f field) error {
		switch f.number {
		case 1:
			return keepAll(f, &to.MatchLabels)
		case 2:
			var e Expression
			err := f.within(func(f field) error {
				switch f.number {
				case 1:
					return f.set(&e.Key)
				case 2:
					return f.set(&e.Operator)
				case 3:
					text, err := f.text()
					e.Values = append(e.Values, text)
					return err
				}
				p.Unknown = true
				return nil
			})
			to.MatchExpressions = append(to.MatchExpressions, e)
			return err
		}

		p.Unknown = true
		return nil
	})
}
