use super::*;

fn nodes(links: &Links, list: List) -> Vec<u32> {
    links.iter(list).collect()
}

#[test]
fn removals_undone_in_reverse_restore_the_list() {
    let mut links = Links::new(6, 1);
    let list = links.list(0);
    for node in 0..6 {
        links.push_back(list, node);
    }
    for node in [1, 2, 0, 5] {
        links.remove(node);
    }
    assert_eq!(nodes(&links, list), [3, 4]);
    for node in [5, 0, 2, 1] {
        links.restore(node);
    }
    assert_eq!(nodes(&links, list), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn runs_leave_at_once_and_come_back_node_by_node() {
    let mut links = Links::new(8, 1);
    let list = links.list(0);
    links.push_front_all(list, [7, 2, 3, 4, 0, 6, 5, 1].into_iter());
    // From the back, from the front, at both ends.
    let order = [4, 3, 2, 6, 5, 1, 7];
    let run = order.into_iter().fold(None, |run, node| Some(links.remove_after(run, node)));
    links.remove_run(run);
    assert_eq!((nodes(&links, list), links.back(list)), (vec![0], Some(0)));
    order.into_iter().rev().for_each(|node| links.restore(node));
    assert_eq!(nodes(&links, list), [7, 2, 3, 4, 0, 6, 5, 1]);
    assert!((1..8).all(|node| links.before(node).is_none_or(|at| links.after(at) == Some(node))));
}

#[test]
fn several_nodes_go_and_come_back_at_the_front_in_order() {
    let mut links = Links::new(5, 1);
    let list = links.list(0);
    links.push_front_all(list, [4, 0, 3].into_iter());
    let mut popped = Vec::new();
    links.pop_front_all(list, 2, &mut popped, |node| node);
    assert_eq!((&popped, nodes(&links, list)), (&vec![4, 0], vec![3]));
    links.push_front_all(list, [1, 4].into_iter());
    links.push_front_all(list, std::iter::empty());
    assert_eq!(nodes(&links, list), [1, 4, 3]);
    links.pop_front_all(list, 3, &mut popped, |node| node);
    assert_eq!((nodes(&links, list), links.front(list)), (vec![], None));
    links.push_back(list, 2);
    links.push_back_all(list, [0, 4].into_iter());
    links.push_back_all(list, std::iter::empty());
    assert_eq!(nodes(&links, list), [2, 0, 4]);
    assert_eq!((links.before(4), links.back(list)), (Some(0), Some(4)));
}

#[test]
fn nodes_of_which_one_may_not_join_leave_the_list_as_it_was() {
    let mut links = Links::new(5, 1);
    let list = links.list(0);
    links.push_front_all(list, [2, 0].into_iter());
    assert!(!links.push_front_if(list, [4, 1, 3].into_iter(), |node| node != 1));
    assert_eq!((nodes(&links, list), links.before(2)), (vec![2, 0], None));
    assert!(links.push_front_if(list, [4, 3].into_iter(), |node| node != 1));
    assert_eq!(nodes(&links, list), [4, 3, 2, 0]);
}

#[test]
fn neighbours_in_number_leave_as_they_are_linked_wherever_their_run_ends() {
    let mut links = Links::new(40, 2);
    let (a, b) = (links.list(0), links.list(1));
    // In 35, 37, 36, 38 the differences between numbers and links cancel out.
    let order: Vec<u32> =
        (3..14).chain([30, 20]).chain(22..30).chain(31..36).chain([37, 36, 38, 39]).collect();
    for count in 0..=order.len() as u32 {
        links.clear(a);
        links.push_front_all(a, order.iter().copied());
        links.push_back(b, 1);
        let mut popped = vec![7];
        links.pop_front_all(a, count, &mut popped, |node| node);
        popped.extend(nodes(&links, a));
        assert_eq!((popped[0], &popped[1..]), (7, &*order));
        assert_eq!(links.pop_front(b), Some(1));
    }
}

#[test]
fn appending_a_list_keeps_both_orders_and_empties_the_source() {
    let mut links = Links::new(5, 2);
    let (a, b) = (links.list(0), links.list(1));
    links.push_front_all(a, [3, 1].into_iter());
    links.push_back(b, 4);
    links.push_back(b, 0);
    links.append(a, b);
    assert_eq!(nodes(&links, a), [3, 1, 4, 0]);
    assert_eq!(nodes(&links, b), [0; 0]);
    links.append(a, b);
    assert_eq!(nodes(&links, a), [3, 1, 4, 0]);
}
