package service

import (
	"errors"
	"fmt"
	"strings"
)

// errText is the error of a text that UnmarshalText does not know.
var errText = errors.New("unknown")

// String returns "inside", "outside" or "host".
func (s Scope) String() string {
	switch s {
	case Outside:
		return "outside"
	case Host:
		return "host"
	}
	return "inside"
}

func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *Scope) UnmarshalText(text []byte) error {
	for _, known := range []Scope{Inside, Outside, Host} {
		if string(text) == known.String() {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("scope %q is %w: write inside, outside or host", text, errText)
}

func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the result of String for TCP, UDP and SCTP.
func (p *Protocol) UnmarshalText(text []byte) error {
	for _, known := range []Protocol{TCP, UDP, SCTP} {
		if string(text) == known.String() {
			*p = known
			return nil
		}
	}
	return fmt.Errorf("protocol %q is %w: write TCP or UDP", text, errText)
}

func (n Name) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

func (n *Name) UnmarshalText(text []byte) error {
	namespace, name, found := strings.Cut(string(text), "/")
	if !found {
		return fmt.Errorf("service %q is %w: write NAMESPACE/NAME", text, errText)
	}
	*n = Name{namespace, name}
	return nil
}
