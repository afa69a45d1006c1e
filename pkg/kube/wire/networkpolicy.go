package wire

// NetworkPolicy holds the fields that are read of a NetworkPolicy
// (k8s.io.api.networking.v1.NetworkPolicy).
type NetworkPolicy struct {
	Meta
	PodSelector     LabelSelector
	Ingress, Egress []PolicyRule
	PolicyTypes     []string
	// HasEgress reports whether the object has an egress rule, even if it was dropped because of
	// Excess.
	HasEgress bool
	// Unknown reports whether the spec has a field that this version does not know. Without this
	// field the rules may allow more than their author intends, so the policy must not allow
	// anything.
	Unknown bool
	// Excess reports whether the object exceeds MaxRules or maxTypes. Ingress and Egress are then
	// empty, and the policy must not allow anything.
	Excess bool
	// SubjectsExcess reports whether PodSelector exceeds MaxSubjects. PodSelector is then empty,
	// and the policy may apply to any pod.
	SubjectsExcess bool
	// Elements is the number of kept elements in the rules and PodSelector.
	Elements int
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

// PolicyPort is a NetworkPolicyPort. A nil pointer means that the object does not have the field.
type PolicyPort struct {
	Protocol *string
	Port     *IntOrString
	EndPort  *int32
}

// IntOrString holds a string if Type is 1, otherwise a number.
type IntOrString struct {
	Type   int64
	IntVal int32
	StrVal string
}

// PolicyPeer is a NetworkPolicyPeer. A nil pointer means that the object does not have the field.
type PolicyPeer struct {
	PodSelector, NamespaceSelector *LabelSelector
	IPBlock                        *IPBlock
}

// IPBlock is an IPBlock of networking/v1.
type IPBlock struct {
	CIDR   string
	Except []string
}

// NetworkPolicy reads a NetworkPolicy without its envelope.
func (r Reader) NetworkPolicy(message []byte) (p NetworkPolicy, err error) {
	in := policyReading{policy: &p, rules: budget{MaxRules}, subjects: budget{MaxSubjects}}
	err = each(message, func(f field) error {
		switch f.number {
		case 1:
			return r.meta(f, &p.Meta)
		case 2:
			return f.within(in.spec)
		}
		return nil
	})

	if !p.Excess {
		p.Elements += MaxRules - in.rules.left
	}
	if !p.SubjectsExcess {
		p.Elements += MaxSubjects - in.subjects.left
	}
	return p, err
}

// policyReading is the state of reading one NetworkPolicy.
type policyReading struct {
	policy          *NetworkPolicy
	rules, subjects budget
}

func (p *policyReading) spec(f field) (err error) {
	to := p.policy
	switch f.number {
	case 1:
		if to.SubjectsExcess {
			return nil
		}
		to.SubjectsExcess, err = excess(p.selector(f, &to.PodSelector, &p.subjects))
		if to.SubjectsExcess {
			to.PodSelector = LabelSelector{}
		}
		return err
	case 2:
		return p.rule(f, &to.Ingress)
	case 3:
		to.HasEgress = true
		return p.rule(f, &to.Egress)
	case 4:
		return p.policyType(f)
	}
	to.Unknown = true
	return nil
}

// policyType reads one of the policyTypes. Beyond the bound, one empty type, which the API does not
// have, replaces the others.
func (p *policyReading) policyType(f field) error {
	switch types := len(p.policy.PolicyTypes); {
	case types > maxTypes:
		return nil
	case types == maxTypes || len(f.data) > elementText:
		p.policy.PolicyTypes = append(p.policy.PolicyTypes, "")
		p.drop()
		return nil
	}
	text, err := f.text()
	p.policy.PolicyTypes = append(p.policy.PolicyTypes, text)
	return err
}

// drop drops all rules and sets Excess.
func (p *policyReading) drop() {
	p.policy.Excess, p.policy.Ingress, p.policy.Egress = true, nil, nil
}

func (p *policyReading) rule(rule field, to *[]PolicyRule) error {
	if p.policy.Excess {
		return nil
	}
	var r PolicyRule
	err := p.rules.take(1)
	if err == nil {
		err = rule.within(func(f field) error {
			switch f.number {
			case 1:
				return p.port(f, &r.Ports)
			case 2:
				return p.peer(f, &r.Peers)
			}
			p.policy.Unknown = true
			return nil
		})
	}
	tooMany, err := excess(err)
	if tooMany {
		p.drop()
		return nil
	}
	*to = append(*to, r)
	return err
}

func (p *policyReading) port(port field, to *[]PolicyPort) error {
	if err := p.rules.take(1); err != nil {
		return err
	}

	var out PolicyPort
	err := port.within(func(f field) error {
		switch f.number {
		case 1:
			text, err := p.rules.word(f)
			out.Protocol = &text
			return err
		case 2:
			if out.Port == nil {
				out.Port = &IntOrString{}
			}
			return p.intOrString(f, out.Port)
		case 3:
			out.EndPort = new(int32)
			return f.setInt32(out.EndPort)
		}
		p.policy.Unknown = true
		return nil
	})
	*to = append(*to, out)
	return err
}

func (p *policyReading) intOrString(value field, to *IntOrString) error {
	return value.within(func(f field) (err error) {
		switch f.number {
		case 1:
			to.Type, err = f.integer()
		case 2:
			err = f.setInt32(&to.IntVal)
		case 3:
			to.StrVal, err = p.rules.word(f)
		default:
			p.policy.Unknown = true
		}
		return err
	})
}

func (p *policyReading) peer(peer field, to *[]PolicyPeer) error {
	if err := p.rules.take(1); err != nil {
		return err
	}

	var out PolicyPeer
	err := peer.within(func(f field) error {
		switch f.number {
		case 1:
			if out.PodSelector == nil {
				out.PodSelector = &LabelSelector{}
			}
			return p.selector(f, out.PodSelector, &p.rules)
		case 2:
			if out.NamespaceSelector == nil {
				out.NamespaceSelector = &LabelSelector{}
			}
			return p.selector(f, out.NamespaceSelector, &p.rules)
		case 3:
			if out.IPBlock == nil {
				out.IPBlock = &IPBlock{}
			}
			return p.block(f, out.IPBlock)
		}
		p.policy.Unknown = true
		return nil
	})
	*to = append(*to, out)
	return err
}

func (p *policyReading) block(block field, to *IPBlock) error {
	return block.within(func(f field) (err error) {
		switch f.number {
		case 1:
			to.CIDR, err = p.rules.text(f)
			return err
		case 2:
			return p.rules.appendTo(f, &to.Except)
		}
		p.policy.Unknown = true
		return nil
	})
}

// selector reads a LabelSelector, and counts its elements in b.
func (p *policyReading) selector(selector field, to *LabelSelector, b *budget) error {
	return selector.within(func(f field) error {
		switch f.number {
		case 1:
			return b.label(f, &to.MatchLabels)
		case 2:
			if err := b.take(1); err != nil {
				return err
			}
			var e Expression
			err := p.expression(f, &e, b)
			to.MatchExpressions = append(to.MatchExpressions, e)
			return err
		}

		p.policy.Unknown = true
		return nil
	})
}

func (p *policyReading) expression(expression field, to *Expression, b *budget) error {
	return expression.within(func(f field) (err error) {
		switch f.number {
		case 1:
			to.Key, err = b.word(f)
		case 2:
			to.Operator, err = b.word(f)
		case 3:
			err = b.appendTo(f, &to.Values)
		default:
			p.policy.Unknown = true
		}
		return err
	})
}
