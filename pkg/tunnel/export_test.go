package tunnel

// Unsettle makes the next Sync of m compare all peers.
func (m *Manager) Unsettle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = false
}

// Settled reports whether m knows that its last reading matches the last Spec.
func (m *Manager) Settled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settled
}
