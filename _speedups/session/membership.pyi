class Membership:
    options: int
    identifier: int

class Memberships:
    count: int
