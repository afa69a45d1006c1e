package wire

// Pod holds the fields that are read of a Pod (k8s.io.api.core.v1.Pod).
type Pod struct {
	Meta
	NodeName    string
	HostNetwork bool
	Phase       string
	// PodIP is equal to the first of PodIPs if the API server writes both.
	PodIP  string
	PodIPs []string
	// Ports are the named ports of all containers that run as long as the pod: of containers, and
	// of init containers with the restart policy Always.
	Ports []ContainerPort
	// Excess reports whether the ports exceed MaxPorts, or the addresses MaxAddresses. Those beyond
	// the bound are left out.
	Excess bool
}

// ContainerPort is a named port of a container.
type ContainerPort struct {
	Name     string
	Port     int32
	Protocol string
}

// Pod reads a Pod without its envelope.
func (r Reader) Pod(message []byte) (p Pod, err error) {
	ports, addresses := budget{MaxPorts}, budget{MaxAddresses}
	err = each(message, func(f field) error {
		switch f.number {
		case 1:
			return r.meta(f, &p.Meta)
		case 2:
			return p.spec(f, &ports)
		case 3:
			return p.status(f, &addresses)
		}
		return nil
	})
	return p, err
}

func (p *Pod) spec(spec field, b *budget) error {
	return spec.within(func(f field) error {
		switch f.number {
		case 2:
			return p.container(f, false, b)
		case 10:
			return f.set(&p.NodeName)
		case 11:
			v, err := f.integer()
			p.HostNetwork = v != 0
			return err
		case 20:
			return p.container(f, true, b)
		}
		return nil
	})
}

// container reads the named ports of a container.
func (p *Pod) container(container field, init bool, b *budget) error {
	if p.Excess {
		return nil
	}
	restart, kept := "", len(p.Ports)
	err := container.within(func(f field) (err error) {
		switch f.number {
		case 6:
			if p.Excess {
				return nil
			}
			port, err := b.port(f)
			if p.Excess, err = excess(err); !p.Excess && port.Name != "" {
				p.Ports = append(p.Ports, port)
			}
			return err
		case 24:
			restart, err = f.text()
		}
		return err
	})
	if init && restart != "Always" {
		p.Ports = p.Ports[:kept]
	}
	return err
}

// port reads a port of a container, and counts it if it has a name.
func (b *budget) port(port field) (p ContainerPort, err error) {
	err = port.within(func(f field) (err error) {
		switch f.number {
		case 1:
			p.Name, err = b.word(f)
		case 3:
			err = f.setInt32(&p.Port)
		case 4:
			p.Protocol, err = b.word(f)
		}
		return err
	})
	if err == nil && p.Name != "" {
		err = b.take(1)
	}
	return p, err
}

func (p *Pod) status(status field, b *budget) error {
	return status.within(func(f field) error {
		switch f.number {
		case 1:
			return f.set(&p.Phase)
		case 6:
			return f.set(&p.PodIP)
		case 12:
			if p.Excess {
				return nil
			}
			ip, err := b.address(f)
			if p.Excess, err = excess(err); !p.Excess {
				p.PodIPs = append(p.PodIPs, ip)
			}
			return err
		}
		return nil
	})
}

// address counts and reads one of the podIPs.
func (b *budget) address(podIP field) (ip string, err error) {
	if err := b.take(1); err != nil {
		return "", err
	}
	err = podIP.only(1, func(f field) (err error) {
		ip, err = b.word(f)
		return err
	})
	return ip, err
}

// Object reads the metadata of any object without its envelope. For a Namespace, that is everything
// that is used.
func (r Reader) Object(message []byte) (m Meta, err error) {
	err = each(message, func(f field) error {
		if f.number == 1 {
			return r.meta(f, &m)
		}
		return nil
	})
	return m, err
}
