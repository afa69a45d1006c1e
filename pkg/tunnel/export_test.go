package tunnel

// Unsettle makes the next Sync of m compare all peers.
func (m *Manager) Unsettle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = false
}
