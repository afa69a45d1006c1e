// Package inventory holds what the own API server has, as far as links with other clusters need it.
//
//	API server ─► reflectors ─► stores ─► State
//	                │             ▲
//	ServiceExports ─┴─► wanted ───┘ which Services and EndpointSlices are kept
//
// Promises:
//   - Read reports whether each kind has been listed. Before that, a missing object means nothing.
//   - Of Services and EndpointSlices, only those of exports are kept, those of veil-site itself, and
//     the names that derived Services need. A namespace has a bound. What is beyond it is counted,
//     and is read again once there is room.
//   - A Service that is exported after the lists is read then. Events and lists that come meanwhile
//     leave the objects that the API server has.
//
// Start reading at Inventory, then wanted.
package inventory
